// SPDX-License-Identifier: Apache-2.0
// ControlConnections delivers packets to on_packet(), which dispatches them: on_attach() makes a
// connection that of a rank, on_segment() gives out shared memory, on_report() spreads a rank's
// error, and on_leave() marks a rank as finished. Below are the ends of processes: worker_reaped()
// for workers and process_ended() for other attached processes, both of which inform the workers
// through the status page (JobStatus) and the launcher through send_updates().
#include "agent/node/supervisor/control_server.h"

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

using comm_status::PageReport;
using comm_status::RankState;
using comm_status::RankStatus;

// Pause between two batches of reports that had to wait.
constexpr std::chrono::milliseconds kReportsPause{10};

Error protocol_error(const std::string& what) { return {Code::kFailedPrecondition, what}; }

// Common checks of Attach and Observe.
template <class Request>
Result<void> check_sender(const Request& request, const JobStatus& status) {
  if (request.version != control::kWireVersion) {
    return protocol_error("libivycomm uses version " + std::to_string(request.version) +
                          " of the control socket, but this ivyrun uses version " +
                          std::to_string(control::kWireVersion));
  }
  if (request.generation != status.layout().generation) {
    return protocol_error("generation " + std::to_string(request.generation) +
                          " is not running; the current one is " +
                          std::to_string(status.layout().generation));
  }
  if (status.slot_of(request.rank)) return {};
  return Error{Code::kInvalidArgument,
               "rank " + std::to_string(request.rank) + " does not run on this host"};
}

Result<void> send_observed(ControlConnection& connection, const control::Observe& observe,
                           JobStatus& status) {
  IVY_CHECK(check_sender(observe, status));
  const SharedPage* const shared =
      IVY_TRY(status.observed().page_of(observe.rank, connection.pid, observe.generation));
  ControlConnections::send(connection, control::Observed{shared->bytes()}, shared->descriptor());
  return {};
}

}  // namespace

void ReportQueue::push(PageReport report) {
  const bool is_known = std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other.communicator == report.communicator;
  });
  if (!is_known && waiting_.size() < kWaitingMax) waiting_.push_back(std::move(report));
}

std::vector<PageReport> ReportQueue::take_due(std::uint64_t now_ns) {
  const std::uint64_t refill = (now_ns - refilled_at_ns_) / kNanosPerReport;
  left_ = std::min<std::uint64_t>(kBurst, left_ + refill);
  // Time that has not yet earned a whole report counts in the next call.
  refilled_at_ns_ += refill * kNanosPerReport;
  std::vector<PageReport> due;
  for (; left_ > 0 && !waiting_.empty(); --left_) {
    due.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return due;
}

ControlServer::ControlServer(boost::asio::io_context& loop, EventSink& events)
    : loop_(loop),
      events_(events),
      connections_(loop, *this),
      segments_(loop),
      reports_timer_(loop) {}

void ControlServer::begin(RankLayout layout) {
  // The exits of the previous generation's processes no longer matter.
  attached_.clear();
  connections_.close_all();
  segments_.clear();
  workers_.assign(layout.local.size(), 0);
  attached_.resize(layout.local.size());
  reports_.assign(layout.local.size(), ReportQueue());
  reports_timer_.cancel();
  are_reports_waiting_ = false;
  listens_for_updates_ = false;
  status_.begin(std::move(layout));
}

void ControlServer::read_rest_of(std::uint32_t rank) {
  const AttachedPointer attached = attached_of(rank);
  const ConnectionPointer connection = attached ? attached->connection() : nullptr;
  if (connection) connections_.read_rest(connection);
}

void ControlServer::worker_started(std::uint32_t rank, pid_t pid) {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  if (!slot) return;
  workers_[*slot] = pid;
  // A pool thread creates the process, which may attach before the loop learns its pid.
  const AttachedPointer attached = attached_[*slot];
  if (attached && attached->pid() == pid) attached->set_our_child();
}

void ControlServer::read_last_packets_of(std::uint32_t rank) {
  read_rest_of(rank);
  const AttachedPointer attached = attached_of(rank);
  // Its parent has reaped it and is exiting, and this host may soon send its last report.
  if (attached)
    if (const auto status = attached->unreported_end()) process_ended(*attached, *status);
}

Result<void> ControlServer::on_packet(const ConnectionPointer& connection,
                                      std::string_view packet) {
  const control::Request request = IVY_TRY(control::decode_request(packet));
  const auto* const attach = std::get_if<control::Attach>(&request);
  const auto* const observe = std::get_if<control::Observe>(&request);
  if (attach != nullptr || observe != nullptr) {
    const Result<void> done = attach != nullptr ? on_attach(connection, *attach)
                                                : send_observed(*connection, *observe, status_);
    if (done.ok()) return {};
    const control::RequestKind kind =
        attach != nullptr ? control::RequestKind::kAttach : control::RequestKind::kObserve;
    connections_.send(*connection,
                      control::Rejected{kind, done.error().code, "", done.error().message});
    return done;
  }
  if (!connection->slot) return protocol_error("received a request before Attach");
  if (const auto* segment = std::get_if<control::Segment>(&request))
    on_segment(connection, *segment);
  if (const auto* report = std::get_if<control::Report>(&request))
    on_report(*connection->slot, *report);
  if (std::holds_alternative<control::Leave>(request)) on_leave(connection);
  return {};
}

Result<void> ControlServer::check_attach(const ControlConnection& connection,
                                         const control::Attach& attach) const {
  if (connection.slot) return protocol_error("this connection is already attached");
  IVY_CHECK(check_sender(attach, status_));
  const std::string rank = "rank " + std::to_string(attach.rank);
  const RankState state = status_.status(attach.rank).state;
  if (state != RankState::kAlive && state != RankState::kLeft)
    return protocol_error("an earlier process of " + rank + ", pid " +
                          std::to_string(status_.status(attach.rank).pid) +
                          ", exited without ivycomm.finalize(), so the other ranks consider it "
                          "dead: let it finalize, or restart all ranks (--max-restarts)");
  const AttachedPointer other = attached_of(attach.rank);
  // A pid of 0 is a process that our pid namespace does not show; it may be any process.
  const bool is_the_same = connection.pid != 0 && other && other->pid() == connection.pid;
  if (other && !other->has_left() && !is_the_same) {
    return Error{Code::kAlreadyExists,
                 rank + " is already attached, as pid " + std::to_string(other->pid()) +
                     "; only one process of a worker can be in the communicator"};
  }
  return {};
}

Result<void> ControlServer::on_attach(const ConnectionPointer& connection,
                                      const control::Attach& attach) {
  IVY_CHECK(check_attach(*connection, attach));
  const int page = IVY_TRY(status_.page_descriptor());
  const std::uint32_t slot = *status_.slot_of(attach.rank);
  // The connection that the same process had before it executed a new program, or the connection of
  // a process that has left.
  const ConnectionPointer old = attached_[slot] ? attached_[slot]->connection() : nullptr;
  const bool is_our_child = connection->pid != 0 && workers_[slot] == connection->pid;
  AttachedProcessEvents& owner = *this;
  const auto attached =
      std::make_shared<AttachedProcess>(loop_, owner, attach.rank, is_our_child, connection);
  attached_[slot] = attached;
  connection->slot = slot;
  if (old) connections_.close(old);  // Only now: its end is not the rank's death.
  const bool had_left = status_.status(attach.rank).state == RankState::kLeft;
  if (had_left) status_.mark_alive(attach.rank, connection->pid);
  if (!is_our_child) attached->watch(std::move(connection->pidfd));
  connections_.send(*connection,
                    control::Attached{control::kWireVersion, slot, status_.page_bytes()}, page);
  status_.publish();
  RankUpdates updates;
  updates.set_listening(!std::exchange(listens_for_updates_, true));
  // A process that is not our child may exit while the worker runs, so the launcher must not take
  // its exit for the worker's.
  if (had_left || !is_our_child) {
    RankUpdate& rank = *updates.add_ranks();
    rank.set_rank(attach.rank);
    rank.set_pid(connection->pid);
  }
  if (updates.listening() || updates.ranks_size() > 0) send_updates(updates);
  return {};
}

void ControlServer::on_segment(const ConnectionPointer& connection,
                               const control::Segment& segment) {
  const auto answer = [this, weak = std::weak_ptr<ControlConnection>(connection),
                       name = segment.name](const Result<int>& fd, std::uint64_t bytes) {
    const ConnectionPointer asker = weak.lock();
    if (!asker || asker->is_closed) return;
    if (fd.ok()) return connections_.send(*asker, control::SegmentReady{bytes, name}, *fd);
    connections_.send(*asker, control::Rejected{control::RequestKind::kSegment, fd.error().code,
                                                name, fd.error().message});
  };
  segments_.request(segment, *connection->slot,
                    static_cast<std::uint32_t>(status_.layout().local.size()), answer);
}

void ControlServer::on_report(std::uint32_t slot, const control::Report& report) {
  if (status_.is_reported(report.communicator)) return;
  PageReport found;
  found.kind = static_cast<std::uint8_t>(report.kind);
  found.blamed = report.blamed;
  found.reporter = attached_[slot]->rank();
  found.sequence = report.sequence;
  found.communicator = report.communicator;
  found.text = report.text;
  reports_[slot].push(std::move(found));
  if (!are_reports_waiting_) send_due_reports();
}

void ControlServer::send_due_reports() {
  RankUpdates updates;
  are_reports_waiting_ = false;
  for (ReportQueue& queue : reports_) {
    for (const PageReport& due : queue.take_due(monotonic_ns())) {
      if (!status_.add(due)) continue;
      RankReport& report = *updates.add_reports();
      report.set_kind(due.kind);
      report.set_blamed(due.blamed);
      report.set_reporter(due.reporter);
      report.set_sequence(due.sequence);
      report.set_communicator(due.communicator);
      report.set_text(due.text);
    }
    are_reports_waiting_ |= !queue.is_empty();
  }
  status_.publish();
  if (updates.reports_size() > 0) send_updates(updates);
  if (!are_reports_waiting_) return;
  reports_timer_.expires_after(kReportsPause);
  reports_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) send_due_reports();
  });
}

void ControlServer::on_leave(const ConnectionPointer& connection) {
  AttachedProcess& attached = *attached_[*connection->slot];
  if (!attached.has_left() && !attached.has_ended()) {
    RankStatus left;
    left.state = RankState::kLeft;
    left.pid = attached.pid();
    left.when_ns = monotonic_ns();
    attached.leave(left.when_ns);
    status_.set(attached.rank(), left);
    status_.publish();
    send_rank(attached.rank());
  }
  connections_.send(*connection, control::Left{});
}

// The end of a connection is only a hint: the exit of the process decides. If the process cannot be
// watched, the hint decides.
void ControlServer::on_closed(const ControlConnection& connection) {
  if (!connection.slot || !attached_[*connection.slot]) return;
  AttachedProcess& attached = *attached_[*connection.slot];
  if (attached.connection().get() != &connection) return;
  if (!attached.is_watched() && !attached.has_left() && !attached.has_ended())
    process_ended(attached, ended_status({}, attached.pid()));
}

void ControlServer::process_ended(AttachedProcess& attached, const RankStatus& status) {
  attached.set_ended();
  if (!status_.set(attached.rank(), status)) return;
  status_.publish();
  send_rank(attached.rank());
}

void ControlServer::send_rank(std::uint32_t rank) {
  RankUpdates updates;
  status_.add_rank(rank, updates);
  send_updates(updates);
}

bool ControlServer::add_all_known(RankUpdates& updates) const {
  if (!listens_for_updates_) return false;
  updates.set_generation(status_.layout().generation);
  updates.set_listening(true);
  for (const AttachedPointer& attached : attached_) add_known(attached.get(), updates);
  return true;
}

bool ControlServer::add_known(std::uint32_t rank, RankUpdates& updates) const {
  updates.set_generation(status_.layout().generation);
  return add_known(attached_of(rank).get(), updates);
}

bool ControlServer::add_known(const AttachedProcess* attached, RankUpdates& updates) const {
  const bool is_known = attached != nullptr && (!attached->is_our_child() || attached->has_left() ||
                                                attached->has_ended());
  if (is_known) status_.add_rank(attached->rank(), updates);
  return is_known;
}

void ControlServer::worker_reaped(std::uint32_t rank, pid_t pid, const ExitStatus& exit,
                                  bool out_of_memory) {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  if (!slot) return;
  RankStatus status = ended_status(exit, pid);
  status.out_of_memory = out_of_memory;
  const AttachedPointer attached = attached_[*slot];
  if (!attached) {
    // The launcher is notified by Exited.
    if (status_.set(rank, status)) status_.publish();
    return;
  }
  if (attached->has_left()) return;
  if (attached->is_our_child()) return process_ended(*attached, status);
  // The child is a shell above the attached process and exits with that process's status, 128 + N
  // for a signal. 0 shows nothing.
  if (status_.status(rank).state != RankState::kDied || exit.is_success()) return;
  process_ended(*attached,
                ended_status(exit.code > 128 ? ExitStatus{.signal = exit.code - 128} : exit,
                             attached->pid()));
}

void ControlServer::worker_starts_again(std::uint32_t rank, std::uint32_t rejoins) {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  if (!slot) return;
  workers_[*slot] = 0;
  const AttachedPointer attached = std::exchange(attached_[*slot], nullptr);
  if (attached && attached->connection()) connections_.close(attached->connection());
  status_.mark_alive(rank, 0, rejoins);
  status_.publish();
}

void ControlServer::child_reaped(pid_t pid, const ExitStatus& exit) {
  // Reading may attach another process in its place.
  for (const AttachedPointer& attached : std::vector<AttachedPointer>(attached_)) {
    if (!attached || attached->pid() != pid || attached->is_our_child()) continue;
    read_rest_of(attached->rank());
    if (attached->has_left()) continue;
    attached->set_exit(exit);
    process_ended(*attached, ended_status(exit, pid));
  }
}

ControlServer::AttachedPointer ControlServer::attached_of(std::uint32_t rank) const {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  return slot ? attached_[*slot] : nullptr;
}

bool ControlServer::is_informed(std::uint32_t rank) const {
  const AttachedPointer attached = attached_of(rank);
  return attached && attached->is_informed(monotonic_ns());
}

bool ControlServer::has_informed() const {
  const std::uint64_t now_ns = monotonic_ns();
  return std::any_of(attached_.begin(), attached_.end(), [now_ns](const AttachedPointer& attached) {
    return attached && attached->is_informed(now_ns);
  });
}

void ControlServer::send_updates(const RankUpdates& updates) {
  Event event;
  *event.mutable_rank_updates() = updates;
  event.mutable_rank_updates()->set_generation(status_.layout().generation);
  events_.send(event);
}

void ControlServer::send_operations(std::uint32_t number, Operations answer) {
  Event event;
  *event.mutable_operations() = std::move(answer);
  event.mutable_operations()->MergeFrom(status_.operations(monotonic_ns()));
  event.mutable_operations()->set_number(number);
  events_.send(event);
}

void ControlServer::send_stall(std::uint64_t limit_ns) {
  if (limit_ns == 0) return;
  const std::optional<std::uint32_t> rank = status_.find_stall(monotonic_ns(), limit_ns);
  if (!rank) return;
  Event event;
  event.mutable_stalled()->set_generation(status_.layout().generation);
  event.mutable_stalled()->set_rank(*rank);
  events_.send(event);
}

}  // namespace ivy
