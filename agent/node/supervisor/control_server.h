// The supervisor's side of the control socket (proto/wire/control_wire.h): attaches workers, hands
// out the status page and shared memory, sees how attached processes end, also below a shell, and
// tells the workers of this host and the launcher. Only our own user is heard; a peer that sends
// garbage, nothing, or too much loses its connection and harms nobody else. Thread: the loop's.
// Lifetime: destroy it outside its handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/segments/segment_table.h"
#include "agent/node/supervisor/job_status.h"
#include "agent/node/supervisor/report_queue.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class ControlServer {
 public:
  // Unattached peers; when there is one more, the oldest of them is closed.
  static constexpr std::size_t kMaxStrangers = 64;

  struct Handlers {
    std::function<void(const Event&)> send;           // To the launcher.
    std::function<pid_t(std::uint32_t rank)> worker;  // The rank's own process, our child; 0: none.
  };

  ControlServer(boost::asio::io_context& loop, Handlers handlers);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Binds and listens on `path`.
  Result<void> listen(const std::string& path);
  // The workers of a generation are about to start: those of the last one have ended.
  void begin(RankLayout layout);

  // The rank's own process, our child, has ended, and the launcher does not know it yet: first
  // passes on what the attached process has sent, or how it ended.
  void worker_ends(std::uint32_t rank);
  // The rank's own process, our child, was reaped. An attached process below it ends on its own;
  // where its end is not known, this exit stands in for it.
  void worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& status, bool out_of_memory);
  // The worker could not be started.
  void worker_not_started(std::uint32_t rank);
  // Another child of ours was reaped: an orphan of a worker that may have been attached.
  void child_reaped(pid_t pid, const ExitStatus& status);
  // Takes over the events that the launcher has heard from the other hosts.
  void take(const News& news);

  // Fills `news` for a launcher that takes the job over: that this host listens for events, and the
  // states of its ranks as far as Exited does not tell them. False: this host does not listen.
  bool known(News& news) const;
  // As above, for one rank.
  bool known(std::uint32_t rank, News& news) const;

  // True if the worker of this rank has been told of a failure that has just happened: it is
  // attached, or was a moment ago (the call that fails may be ivy_init, which detaches with its
  // error).
  bool is_told(std::uint32_t rank) const;
  bool has_told() const;
  // Sends Operations.
  void tell_operations(std::uint32_t number);
  // Sends Stalled when an operation has run longer than the limit; once per operation. 0: never.
  void tell_stall(std::uint64_t limit_ns);
  JobStatus& status() { return status_; }

 private:
  struct Connection;
  struct Attachment;
  using ConnectionPointer = std::shared_ptr<Connection>;

  void accept();
  bool accept_one();  // False: no descriptor is left.
  void read(const ConnectionPointer& connection);
  void read_packets(const ConnectionPointer& connection);
  bool take_packets(const ConnectionPointer& connection);
  Result<void> on_packet(const ConnectionPointer& connection, std::string_view packet);
  Result<void> on_attach(const ConnectionPointer& connection, const control::Attach& attach);
  Result<void> check_attach(const Connection& connection, const control::Attach& attach) const;
  void on_segment(const ConnectionPointer& connection, const control::Segment& segment);
  void on_report(std::uint32_t slot, const control::Report& report);
  void tell_reports();
  void on_leave(const ConnectionPointer& connection);
  void send(Connection& connection, const control::Reply& reply, int fd);
  void close(const ConnectionPointer& connection);
  void forget_strangers();

  void watch(std::uint32_t slot, int pidfd);
  // Reads what the rank's process has sent and is still unread, a Leave or a report, before the end
  // of that process is acted on.
  void take_last_words(std::uint32_t rank);
  void process_ended(std::uint32_t slot, std::size_t attempt);
  void attached_ended(std::uint32_t slot, const comm_status::RankStatus& status);
  void tell_rank(std::uint32_t rank);
  void add_rank(std::uint32_t rank, News& news) const;
  bool add_known(const Attachment* attachment, News& news) const;
  void tell(const News& news);
  Attachment* attachment_of(std::uint32_t rank);
  const Attachment* attachment_of(std::uint32_t rank) const;

  boost::asio::io_context& loop_;
  Handlers handlers_;
  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer accept_timer_;
  JobStatus status_;
  SegmentTable segments_;
  std::vector<ConnectionPointer> connections_;            // In the order of their arrival.
  std::vector<std::unique_ptr<Attachment>> attachments_;  // By slot.
  std::vector<ReportQueue> reports_;                      // By slot, for all its processes.
  boost::asio::steady_timer reports_timer_;
  bool is_reports_timer_set_ = false;
  std::uint64_t serial_ = 0;  // Counts generations: timers of the last one do nothing.
  bool is_listening_to_news_ = false;
};

}  // namespace ivy
