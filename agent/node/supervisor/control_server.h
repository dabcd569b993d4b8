// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the control socket (proto/wire/control_wire.h): attaches workers, gives
// them the status page and shared memory, detects how attached processes exit, also below a shell,
// and informs the workers of this host and the launcher. Thread: the loop's. Lifetime: the event
// sink must outlive it; destroy it outside its own functions.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/segments/segment_table.h"
#include "agent/node/supervisor/attached_process.h"
#include "agent/node/supervisor/control_connections.h"
#include "agent/node/supervisor/event_sink.h"
#include "agent/node/supervisor/job_status.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/status_page.h"

namespace ivy {

// The reports of one worker that wait to be sent to the other ranks. Sends a burst immediately,
// then a fixed number per second, so that a worker that reports endlessly does not burden other
// processes. Pure; the time is passed in.
class ReportQueue {
 public:
  static constexpr std::uint32_t kBurst = 64;
  static constexpr std::uint64_t kNanosPerReport = 2'000'000;
  // Limit of waiting reports. Each communicator has at most one; reports of further communicators
  // are dropped.
  static constexpr std::size_t kWaitingMax = 1024;

  // Drops the report if another one of its communicator is waiting: the first reason counts.
  void push(comm_status::PageReport report);
  // Removes and returns the reports that are due, in their order.
  std::vector<comm_status::PageReport> take_due(std::uint64_t now_ns);
  bool is_empty() const { return waiting_.empty(); }

 private:
  std::deque<comm_status::PageReport> waiting_;
  std::uint64_t left_ = kBurst;  // Reports that may still be sent without delay.
  std::uint64_t refilled_at_ns_ = 0;
};

class ControlServer final : private ControlConnectionEvents, private AttachedProcessEvents {
 public:
  ControlServer(boost::asio::io_context& loop, EventSink& events);

  // Binds and listens on `path`, if it does not listen already.
  Result<void> listen(const std::string& path) { return connections_.listen(path); }
  const std::string& path() const { return connections_.path(); }  // Empty if it does not listen.
  // Prepares for the workers of the next generation. The previous workers must have exited.
  void begin(RankLayout layout);

  // The rank's own process, our child, was started.
  void worker_started(std::uint32_t rank, pid_t pid);
  // Called after the rank's own process has exited and before the launcher is told. First sends the
  // launcher the unread packets of the attached process, or the exit of that process.
  void read_last_packets_of(std::uint32_t rank);
  // The rank's own process was reaped. An attached process below it exits separately; if its exit
  // status remains unknown, this status is used instead.
  void worker_reaped(std::uint32_t rank, pid_t pid, const ExitStatus& status, bool out_of_memory);
  // The rank's processes have exited, and only this rank is restarted: another process may attach.
  void worker_starts_again(std::uint32_t rank, std::uint32_t rejoins);
  // Another child was reaped: an orphan of a worker, which may have been attached.
  void child_reaped(pid_t pid, const ExitStatus& status);

  // Fills `updates` for a launcher that takes the job over: that this host listens for events, and
  // the states of its ranks unless Exited contains them. Returns false if this host does not
  // listen.
  bool add_all_known(RankUpdates& updates) const;
  // Adds the state of this rank unless Exited contains it. Returns true if it was added.
  bool add_known(std::uint32_t rank, RankUpdates& updates) const;

  // Returns true if the worker of this rank knows about a failure that has just happened.
  bool is_informed(std::uint32_t rank) const;
  // Returns true if any worker does.
  bool has_informed() const;
  // Sends the operations of every local rank, added to `answer`.
  void send_operations(std::uint32_t number, Operations answer = {});
  // Sends Stalled if an operation has run longer than the limit, once per operation. A limit of 0
  // disables this.
  void send_stall(std::uint64_t limit_ns);
  JobStatus& status() { return status_; }

 private:
  using ConnectionPointer = ControlConnections::Pointer;
  using AttachedPointer = std::shared_ptr<AttachedProcess>;

  // ControlConnectionEvents
  Result<void> on_packet(const ConnectionPointer& connection, std::string_view packet) override;
  void on_closed(const ControlConnection& connection) override;
  // AttachedProcessEvents
  void read_rest_of(std::uint32_t rank) override;
  void process_ended(AttachedProcess& attached, const comm_status::RankStatus& status) override;

  Result<void> on_attach(const ConnectionPointer& connection, const control::Attach& attach);
  Result<void> check_attach(const ControlConnection& connection,
                            const control::Attach& attach) const;
  void on_segment(const ConnectionPointer& connection, const control::Segment& segment);
  void on_report(std::uint32_t slot, const control::Report& report);
  void on_leave(const ConnectionPointer& connection);

  void send_due_reports();
  void send_rank(std::uint32_t rank);
  // Returns true if the state was added.
  bool add_known(const AttachedProcess* attached, RankUpdates& updates) const;
  void send_updates(const RankUpdates& updates);
  AttachedPointer attached_of(std::uint32_t rank) const;

  boost::asio::io_context& loop_;
  EventSink& events_;
  ControlConnections connections_;
  JobStatus status_;
  SegmentTable segments_;
  // workers_, attached_ and reports_ have one entry for each local rank.
  std::vector<pid_t> workers_;  // The ranks' own processes, our children; 0 if not started.
  std::vector<AttachedPointer> attached_;
  std::vector<ReportQueue> reports_;
  boost::asio::steady_timer reports_timer_;
  bool are_reports_waiting_ = false;  // reports_timer_ is running.
  bool listens_for_updates_ = false;
};

}  // namespace ivy
