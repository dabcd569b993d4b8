// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the control socket (proto/wire/control_wire.h): attaches workers, hands
// out the status page and shared memory, sees how attached processes end, also below a shell, and
// informs the workers of this host and the launcher. Thread: the loop's. Lifetime: destroy it
// outside its handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/segments/segment_table.h"
#include "agent/node/supervisor/attached_process.h"
#include "agent/node/supervisor/control_connections.h"
#include "agent/node/supervisor/job_status.h"
#include "agent/node/supervisor/report_queue.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class ControlServer {
 public:
  struct Handlers {
    std::function<void(const Event&)> send;           // Passes an event to the launcher.
    std::function<pid_t(std::uint32_t rank)> worker;  // The rank's own process, our child; 0: none.
  };

  ControlServer(boost::asio::io_context& loop, Handlers handlers);

  // Binds and listens on `path`, if it does not listen already.
  Result<void> listen(const std::string& path) { return connections_.listen(path); }
  const std::string& path() const { return connections_.path(); }  // Empty: it does not listen.
  // The workers of a generation are about to start: those of the last one have ended.
  void begin(RankLayout layout);

  // The rank's own process, our child, has ended, and the launcher does not know it yet: first
  // passes on what the attached process has sent, or how it ended.
  void worker_ends(std::uint32_t rank);
  // The rank's own process, our child, was reaped. An attached process below it ends on its own;
  // where its end is not known, this exit stands in for it.
  void worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& status, bool out_of_memory);
  // The rank's processes have ended, and it is started again alone: another process may attach.
  void worker_starts_again(std::uint32_t rank, std::uint32_t rejoins);
  // Another child of ours was reaped: an orphan of a worker that may have been attached.
  void child_reaped(pid_t pid, const ExitStatus& status);

  // Fills `news` for a launcher that takes the job over: that this host listens for events, and the
  // states of its ranks as far as Exited does not tell them. False: this host does not listen.
  bool known(News& news) const;
  // As above, for one rank.
  bool known(std::uint32_t rank, News& news) const;

  // True if a failure that has just happened has reached the worker of this rank, or any worker.
  bool is_informed(std::uint32_t rank) const;
  bool has_informed() const;
  // Sends what every local rank is doing.
  // With what ranks use, as far as `answer` says it already.
  void tell_operations(std::uint32_t number, Operations answer = {});
  // Sends Stalled when an operation has run longer than the limit; once per operation. 0: never.
  void tell_stall(std::uint64_t limit_ns);
  JobStatus& status() { return status_; }

 private:
  using ConnectionPointer = ControlConnections::Pointer;
  using AttachedPointer = std::shared_ptr<AttachedProcess>;

  Result<void> on_packet(const ConnectionPointer& connection, std::string_view packet);
  Result<void> on_attach(const ConnectionPointer& connection, const control::Attach& attach);
  Result<void> check_attach(const ControlConnection& connection,
                            const control::Attach& attach) const;
  void on_segment(const ConnectionPointer& connection, const control::Segment& segment);
  void on_report(std::uint32_t slot, const control::Report& report);
  void on_leave(const ConnectionPointer& connection);
  void on_closed(const ControlConnection& connection);

  void watch(AttachedProcess& attached, Descriptor pidfd);
  // Reads what the rank's process has sent and is still unread, a Leave or a report, before the end
  // of that process is acted on.
  void read_rest_of(std::uint32_t rank);
  void process_ended(AttachedProcess& attached, const comm_status::RankStatus& status);
  void send_reports(const ReportQueues::Reports& due);
  void tell_rank(std::uint32_t rank);
  bool add_known(const AttachedProcess* attached, News& news) const;
  void tell(const News& news);
  AttachedPointer attached_of(std::uint32_t rank) const;

  boost::asio::io_context& loop_;
  Handlers handlers_;
  ControlConnections connections_;
  JobStatus status_;
  SegmentTable segments_;
  std::vector<AttachedPointer> attached_;  // One place for each local rank.
  ReportQueues reports_;
  bool is_listening_to_news_ = false;
};

}  // namespace ivy
