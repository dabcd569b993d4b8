#include "agent/node/supervisor/control_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "agent/node/supervisor/control_peer.h"
#include "agent/node/workers/ending.h"
#include "proto/os/clock.h"
#include "proto/os/listening_socket.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;
using comm_status::PageReport;
using comm_status::RankState;
using comm_status::RankStatus;

constexpr int kBacklog = 4096;  // All workers of a host at once.
// Packets read from one connection before the others get their turn.
constexpr int kPacketsPerTurn = 16;
// Turns that suffice to drain the full socket of a process that has ended.
constexpr int kLastTurns = 64;
// Reports that had to wait are sent in batches, this far apart.
constexpr std::chrono::milliseconds kReportsPause{10};

// Pause until descriptors may be free again.
constexpr std::chrono::milliseconds kAcceptPause{100};

// The kernel knows how a process ended once its parent, a shell, has reaped it. The kernel is asked
// again after these delays; at the fourth try the other ranks are told that the process died.
constexpr std::chrono::milliseconds kStatusDelays[] = {
    std::chrono::milliseconds(1), std::chrono::milliseconds(3), std::chrono::milliseconds(10),
    std::chrono::milliseconds(50), std::chrono::milliseconds(200)};
constexpr std::size_t kToldAtAttempt = 3;

RankStatus status_of(const ExitStatus& exit, pid_t pid) {
  RankStatus status;
  status.state = exit.signal != 0 ? RankState::kSignalled : RankState::kExited;
  status.code = exit.signal != 0 ? exit.signal : exit.code;
  status.pid = pid;
  status.when_ns = monotonic_ns();
  return status;
}

RankStatus died(pid_t pid) {
  RankStatus status;
  status.state = RankState::kDied;
  status.pid = pid;
  status.when_ns = monotonic_ns();
  return status;
}

bool is_readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

Error protocol_error(const std::string& what) { return {Code::kFailedPrecondition, what}; }

}  // namespace

struct ControlServer::Connection {
  Connection(boost::asio::io_context& loop, int fd, const ControlPeer& of)
      : socket(loop, fd), peer(of) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (peer.pidfd >= 0) ::close(peer.pidfd);
  }

  stream_descriptor socket;
  ControlPeer peer;
  std::optional<std::uint32_t> slot;  // Set when it attaches.
  bool is_closed = false;
};

// The process that stands for a rank.
struct ControlServer::Attachment {
  explicit Attachment(boost::asio::io_context& loop) : pidfd(loop), timer(loop) {}
  std::uint32_t rank = 0;
  pid_t pid = 0;
  bool is_our_child = false;  // Its end is known by worker_ended().
  bool has_left = false;
  std::uint64_t left_at_ns = 0;
  bool has_ended = false;
  stream_descriptor pidfd;
  boost::asio::steady_timer timer;
  std::optional<ExitStatus> reaped;  // Its status, if we have inherited it as a child.
  std::weak_ptr<Connection> connection;
};

ControlServer::ControlServer(boost::asio::io_context& loop, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      listener_(loop),
      accept_timer_(loop),
      segments_(loop),
      reports_timer_(loop) {}

ControlServer::~ControlServer() = default;

Result<void> ControlServer::listen(const std::string& path) {
  const Result<int> fd = listen_unix(path, SOCK_SEQPACKET, kBacklog);
  if (!fd.ok()) return fd.error().context("control socket");
  listener_.assign(*fd);
  accept();
  return {};
}

void ControlServer::begin(RankLayout layout) {
  ++serial_;
  // The ends of the last generation's processes no longer matter.
  attachments_.clear();
  const std::vector<ConnectionPointer> old = connections_;
  for (const ConnectionPointer& connection : old) {
    connection->slot.reset();
    close(connection);
  }
  segments_.clear();
  attachments_.resize(layout.local.size());
  reports_.assign(layout.local.size(), ReportQueue());
  reports_timer_.cancel();
  is_reports_timer_set_ = false;
  is_listening_to_news_ = false;
  status_.begin(std::move(layout));
}

void ControlServer::accept() {
  listener_.async_wait(stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) return;
    if (accept_one()) return accept();
    // Out of descriptors: waiting for "readable" would spin.
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) accept();
    });
  });
}

bool ControlServer::accept_one() {
  const int fd = accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return true;
    // A worker needs the descriptors more than an unattached peer.
    forget_strangers();
    return false;
  }
  const Result<ControlPeer> peer = peer_of(fd);
  const bool is_ours = peer.ok() && peer->uid == geteuid();
  if (!is_ours) {
    if (peer.ok() && peer->pidfd >= 0) ::close(peer->pidfd);
    ::close(fd);
    return true;
  }
  forget_strangers();
  const auto connection = std::make_shared<Connection>(loop_, fd, *peer);
  connections_.push_back(connection);
  read(connection);
  return true;
}

// Closes the oldest unattached peer when there are too many.
void ControlServer::forget_strangers() {
  std::vector<ConnectionPointer> strangers;
  for (const ConnectionPointer& connection : connections_)
    if (!connection->slot) strangers.push_back(connection);
  if (strangers.size() >= kMaxStrangers) close(strangers.front());
}

void ControlServer::read(const ConnectionPointer& connection) {
  connection->socket.async_wait(stream_descriptor::wait_read,
                                [this, connection](const error_code& error) {
                                  if (!error && !connection->is_closed) read_packets(connection);
                                });
}

void ControlServer::read_packets(const ConnectionPointer& connection) {
  if (take_packets(connection)) return read(connection);
  close(connection);
}

// False: the connection has ended, or must be closed.
bool ControlServer::take_packets(const ConnectionPointer& connection) {
  std::array<char, control::kMaxPacketBytes + 1> buffer;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    // Descriptors that a worker sends are discarded by the kernel: there is no room for them here.
    const ssize_t count =
        recv(connection->socket.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0 || count > static_cast<ssize_t>(control::kMaxPacketBytes)) return false;
    const std::string_view packet(buffer.data(), static_cast<std::size_t>(count));
    if (!on_packet(connection, packet).ok() || connection->is_closed) return false;
  }
  return true;
}

void ControlServer::take_last_words(std::uint32_t rank) {
  Attachment* const attachment = attachment_of(rank);
  const ConnectionPointer connection =
      attachment != nullptr ? attachment->connection.lock() : nullptr;
  // If the connection has ended, its pending read closes it.
  for (int turn = 0; connection && turn < kLastTurns; ++turn) {
    if (connection->is_closed || !is_readable(connection->socket.native_handle())) return;
    if (!take_packets(connection)) return;
  }
}

void ControlServer::worker_ends(std::uint32_t rank) {
  take_last_words(rank);
  Attachment* const attachment = attachment_of(rank);
  const bool is_below = attachment != nullptr && !attachment->has_left && !attachment->has_ended &&
                        attachment->pidfd.is_open() &&
                        is_readable(attachment->pidfd.native_handle());
  if (!is_below) return;
  // Its parent has reaped it and ends now; this host may send its last report soon.
  const std::optional<ExitStatus> exit = exit_status_by_pidfd(attachment->pidfd.native_handle());
  attached_ended(*status_.slot_of(rank),
                 exit ? status_of(*exit, attachment->pid) : died(attachment->pid));
}

Result<void> ControlServer::on_packet(const ConnectionPointer& connection,
                                      std::string_view packet) {
  const control::Request request = IVY_TRY(control::decode_request(packet));
  if (const auto* attach = std::get_if<control::Attach>(&request)) {
    const Result<void> attached = on_attach(connection, *attach);
    if (attached.ok()) return {};
    send(*connection,
         control::Refused{control::RequestKind::kAttach, attached.error().code, "",
                          attached.error().message},
         -1);
    return attached;
  }
  if (!connection->slot) return protocol_error("a request before Attach");
  if (const auto* segment = std::get_if<control::Segment>(&request))
    on_segment(connection, *segment);
  if (const auto* report = std::get_if<control::Report>(&request))
    on_report(*connection->slot, *report);
  if (std::holds_alternative<control::Leave>(request)) on_leave(connection);
  return {};
}

Result<void> ControlServer::check_attach(const Connection& connection,
                                         const control::Attach& attach) const {
  if (connection.slot) return protocol_error("this connection is attached already");
  if (attach.version != control::kWireVersion) {
    return protocol_error("libivycomm speaks version " + std::to_string(attach.version) +
                          " of the control socket, this ivyrun version " +
                          std::to_string(control::kWireVersion));
  }
  const RankLayout& layout = status_.layout();
  if (attach.generation != layout.generation) {
    return protocol_error("generation " + std::to_string(attach.generation) +
                          " is not the one that runs: " + std::to_string(layout.generation));
  }
  const std::string rank = "rank " + std::to_string(attach.rank);
  if (!status_.slot_of(attach.rank))
    return Error{Code::kInvalidArgument, rank + " does not run on this host"};
  const RankState state = status_.status(attach.rank).state;
  if (state != RankState::kAlive && state != RankState::kLeft)
    return protocol_error(rank + " has ended; the others have been told");
  const Attachment* const other = attachment_of(attach.rank);
  // 0: a process that our pid namespace does not show; it may be any process.
  const bool is_the_same =
      connection.peer.pid != 0 && other != nullptr && other->pid == connection.peer.pid;
  if (other != nullptr && !other->has_left && !is_the_same) {
    return Error{Code::kAlreadyExists,
                 rank + " is already attached, as pid " + std::to_string(other->pid) +
                     "; only one process of a worker can be in the communicator"};
  }
  return {};
}

Result<void> ControlServer::on_attach(const ConnectionPointer& connection,
                                      const control::Attach& attach) {
  IVY_CHECK(check_attach(*connection, attach));
  const int page = IVY_TRY(status_.page_descriptor());
  const std::uint32_t slot = *status_.slot_of(attach.rank);
  // The connection that the same process had before it executed a new program, or one that has
  // left.
  const ConnectionPointer old =
      attachments_[slot] ? attachments_[slot]->connection.lock() : nullptr;
  auto attachment = std::make_unique<Attachment>(loop_);
  attachment->rank = attach.rank;
  attachment->pid = connection->peer.pid;
  attachment->is_our_child =
      attachment->pid != 0 && handlers_.worker(attach.rank) == attachment->pid;
  attachment->connection = connection;
  attachments_[slot] = std::move(attachment);
  connection->slot = slot;
  if (old) close(old);  // Only now: its end is not the rank's death.
  const bool had_left = status_.status(attach.rank).state == RankState::kLeft;
  if (had_left) status_.revive(attach.rank, connection->peer.pid);
  if (!attachments_[slot]->is_our_child) watch(slot, std::exchange(connection->peer.pidfd, -1));
  send(*connection, control::Attached{control::kWireVersion, slot, status_.page_bytes()}, page);
  status_.publish();
  News news;
  news.set_listening(!std::exchange(is_listening_to_news_, true));
  // A process that is not our child may end while the worker lives, so the launcher must not take
  // its end for the worker's.
  if (had_left || !attachments_[slot]->is_our_child) {
    RankNews& rank = *news.add_ranks();
    rank.set_rank(attach.rank);
    rank.set_pid(connection->peer.pid);
  }
  if (news.listening() || news.ranks_size() > 0) tell(news);
  return {};
}

void ControlServer::on_segment(const ConnectionPointer& connection,
                               const control::Segment& segment) {
  const auto answer = [this, weak = std::weak_ptr<Connection>(connection), name = segment.name](
                          const Result<int>& fd, std::uint64_t bytes) {
    const ConnectionPointer asker = weak.lock();
    if (!asker || asker->is_closed) return;
    if (fd.ok()) return send(*asker, control::SegmentReady{bytes, name}, *fd);
    send(
        *asker,
        control::Refused{control::RequestKind::kSegment, fd.error().code, name, fd.error().message},
        -1);
  };
  segments_.ask(segment, *connection->slot,
                static_cast<std::uint32_t>(status_.layout().local.size()), answer);
}

void ControlServer::on_report(std::uint32_t slot, const control::Report& report) {
  if (status_.is_reported(report.communicator)) return;
  PageReport found;
  found.kind = static_cast<std::uint8_t>(report.kind);
  found.blamed = report.blamed;
  found.reporter = attachments_[slot]->rank;
  found.sequence = report.sequence;
  found.communicator = report.communicator;
  found.text = report.text;
  reports_[slot].push(std::move(found));
  // While the timer is set, the report goes out with the waiting ones.
  if (!is_reports_timer_set_) tell_reports();
}

// Sends all workers' reports that are due to all ranks.
void ControlServer::tell_reports() {
  News news;
  bool has_more = false;
  for (ReportQueue& queue : reports_) {
    if (queue.is_empty()) continue;
    for (const PageReport& found : queue.take_due(monotonic_ns())) {
      if (!status_.add(found)) continue;
      RankReport& told = *news.add_reports();
      told.set_kind(found.kind);
      told.set_blamed(found.blamed);
      told.set_reporter(found.reporter);
      told.set_sequence(found.sequence);
      told.set_communicator(found.communicator);
      told.set_text(found.text);
    }
    has_more |= !queue.is_empty();
  }
  status_.publish();
  if (news.reports_size() > 0) tell(news);
  is_reports_timer_set_ = has_more;
  if (!has_more) return;
  reports_timer_.expires_after(kReportsPause);
  reports_timer_.async_wait([this](const error_code& error) {
    if (!error) tell_reports();
  });
}

void ControlServer::on_leave(const ConnectionPointer& connection) {
  Attachment& attachment = *attachments_[*connection->slot];
  if (!attachment.has_left && !attachment.has_ended) {
    attachment.has_left = true;
    attachment.left_at_ns = monotonic_ns();
    attachment.timer.cancel();
    error_code ignored;
    attachment.pidfd.close(ignored);
    RankStatus left;
    left.state = RankState::kLeft;
    left.pid = attachment.pid;
    left.when_ns = monotonic_ns();
    status_.set(attachment.rank, left);
    status_.publish();
    tell_rank(attachment.rank);
  }
  send(*connection, control::Left{}, -1);
}

void ControlServer::send(Connection& connection, const control::Reply& reply, int fd) {
  if (connection.is_closed) return;
  std::string packet = control::encode(reply);
  iovec part{packet.data(), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> rights{};
  if (fd >= 0) {
    message.msg_control = rights.data();
    message.msg_controllen = rights.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t count = 0;
  do {
    count = sendmsg(connection.socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  // A worker that keeps asking and never reads an answer is cut off: shutdown ends its read as
  // well.
  if (count < 0) shutdown(connection.socket.native_handle(), SHUT_RDWR);
}

void ControlServer::close(const ConnectionPointer& connection) {
  if (std::exchange(connection->is_closed, true)) return;
  error_code ignored;
  connection->socket.close(ignored);
  std::erase(connections_, connection);
  if (!connection->slot || !attachments_[*connection->slot]) return;
  Attachment& attachment = *attachments_[*connection->slot];
  if (attachment.connection.lock() != connection) return;
  // The connection's end is only a hint: the process's end decides. Where that cannot be watched,
  // the hint decides.
  const bool is_watched = attachment.is_our_child || attachment.pidfd.is_open();
  if (!is_watched && !attachment.has_left && !attachment.has_ended) {
    attached_ended(*connection->slot, died(attachment.pid));
  }
}

void ControlServer::watch(std::uint32_t slot, int pidfd) {
  if (pidfd < 0) return;
  Attachment& attachment = *attachments_[slot];
  attachment.pidfd.assign(pidfd);
  attachment.pidfd.async_wait(
      stream_descriptor::wait_read,
      [this, slot, serial = serial_, watched = &attachment](const error_code& error) {
        if (error || serial != serial_) return;
        if (attachments_[slot].get() == watched) process_ended(slot, 0);
      });
}

void ControlServer::process_ended(std::uint32_t slot, std::size_t attempt) {
  Attachment& attachment = *attachments_[slot];
  take_last_words(attachment.rank);
  if (attachment.has_left) return;
  const std::optional<ExitStatus> exit =
      attachment.reaped ? attachment.reaped
                        : exit_status_by_pidfd(attachment.pidfd.native_handle());
  if (exit) return attached_ended(slot, status_of(*exit, attachment.pid));
  if (attempt == kToldAtAttempt) attached_ended(slot, died(attachment.pid));
  if (attempt >= std::size(kStatusDelays)) return;
  attachment.timer.expires_after(kStatusDelays[attempt]);
  attachment.timer.async_wait(
      [this, slot, attempt, serial = serial_, watched = &attachment](const error_code& error) {
        if (error || serial != serial_ || attachments_[slot].get() != watched) return;
        process_ended(slot, attempt + 1);
      });
}

void ControlServer::attached_ended(std::uint32_t slot, const RankStatus& status) {
  Attachment& attachment = *attachments_[slot];
  attachment.has_ended = true;
  if (!status_.set(attachment.rank, status)) return;
  status_.publish();
  tell_rank(attachment.rank);
}

void ControlServer::tell_rank(std::uint32_t rank) {
  News news;
  add_rank(rank, news);
  tell(news);
}

bool ControlServer::known(News& news) const {
  if (!is_listening_to_news_) return false;
  news.set_generation(status_.layout().generation);
  news.set_listening(true);
  for (const std::unique_ptr<Attachment>& attachment : attachments_)
    add_known(attachment.get(), news);
  return true;
}

bool ControlServer::known(std::uint32_t rank, News& news) const {
  news.set_generation(status_.layout().generation);
  return add_known(attachment_of(rank), news);
}

bool ControlServer::add_known(const Attachment* attachment, News& news) const {
  const bool is_told = attachment != nullptr &&
                       (!attachment->is_our_child || attachment->has_left || attachment->has_ended);
  if (is_told) add_rank(attachment->rank, news);
  return is_told;
}

void ControlServer::add_rank(std::uint32_t rank, News& news) const {
  const RankStatus status = status_.status(rank);
  RankNews& told = *news.add_ranks();
  told.set_rank(rank);
  told.set_state(static_cast<std::uint32_t>(status.state));
  told.set_code(status.code);
  told.set_pid(status.pid);
  told.set_out_of_memory(status.out_of_memory);
}

void ControlServer::worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& exit,
                                 bool out_of_memory) {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  if (!slot) return;
  RankStatus status = status_of(exit, pid);
  status.out_of_memory = out_of_memory;
  const Attachment* const attachment = attachments_[*slot].get();
  if (attachment == nullptr) {
    // The launcher learns of it from Exited.
    if (status_.set(rank, status)) status_.publish();
    return;
  }
  if (attachment->has_left) return;
  if (attachment->is_our_child) return attached_ended(*slot, status);
  // The child is a shell above the attached process: it exits with that status, 128 + N for a
  // signal; 0 tells nothing.
  if (status_.status(rank).state != RankState::kDied || exit.success()) return;
  status =
      status_of(exit.code > 128 ? ExitStatus{.signal = exit.code - 128} : exit, attachment->pid);
  attached_ended(*slot, status);
}

void ControlServer::worker_not_started(std::uint32_t rank) {
  if (status_.set(rank, died(0))) status_.publish();
}

void ControlServer::child_reaped(pid_t pid, const ExitStatus& exit) {
  for (std::uint32_t slot = 0; slot < attachments_.size(); ++slot) {
    Attachment* const attachment = attachments_[slot].get();
    if (attachment == nullptr || attachment->pid != pid || attachment->is_our_child) continue;
    take_last_words(attachment->rank);
    if (attachment->has_left) continue;
    attachment->reaped = exit;
    attached_ended(slot, status_of(exit, pid));
  }
}

void ControlServer::take(const News& news) {
  if (news.generation() != status_.layout().generation) return;
  for (const RankNews& told : news.ranks()) {
    const bool is_known = told.state() <= static_cast<std::uint32_t>(RankState::kHostLost);
    // This supervisor is the authority on its own ranks: ignore news about them.
    if (!is_known || status_.slot_of(told.rank())) continue;
    RankStatus status;
    status.state = static_cast<RankState>(told.state());
    status.code = told.code();
    status.pid = told.pid();
    status.out_of_memory = told.out_of_memory();
    status.when_ns = monotonic_ns();
    if (status.state == RankState::kAlive) {
      if (status_.status(told.rank()).state == RankState::kLeft)
        status_.revive(told.rank(), status.pid);
      continue;
    }
    status_.set(told.rank(), status);
  }
  for (const RankReport& told : news.reports()) {
    PageReport report;
    report.kind = static_cast<std::uint8_t>(told.kind());
    report.blamed = told.blamed();
    report.reporter = told.reporter();
    report.sequence = told.sequence();
    report.communicator = told.communicator();
    report.text = told.text();
    status_.add(report);
  }
  status_.publish();
}

ControlServer::Attachment* ControlServer::attachment_of(std::uint32_t rank) {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  return slot ? attachments_[*slot].get() : nullptr;
}

const ControlServer::Attachment* ControlServer::attachment_of(std::uint32_t rank) const {
  const std::optional<std::uint32_t> slot = status_.slot_of(rank);
  return slot ? attachments_[*slot].get() : nullptr;
}

bool ControlServer::is_told(std::uint32_t rank) const {
  const Attachment* const attachment = attachment_of(rank);
  if (attachment == nullptr || attachment->has_ended) return false;
  return !attachment->has_left || monotonic_ns() - attachment->left_at_ns < Ending::kWarningNs;
}

bool ControlServer::has_told() const {
  const std::vector<std::uint32_t>& local = status_.layout().local;
  return std::any_of(local.begin(), local.end(),
                     [this](std::uint32_t rank) { return is_told(rank); });
}

void ControlServer::tell(const News& news) {
  Event event;
  *event.mutable_news() = news;
  event.mutable_news()->set_generation(status_.layout().generation);
  handlers_.send(event);
}

void ControlServer::tell_operations(std::uint32_t number) {
  Event event;
  *event.mutable_operations() = status_.operations(monotonic_ns());
  event.mutable_operations()->set_number(number);
  handlers_.send(event);
}

void ControlServer::tell_stall(std::uint64_t limit_ns) {
  if (limit_ns == 0) return;
  const std::optional<std::uint32_t> rank = status_.find_stall(monotonic_ns(), limit_ns);
  if (!rank) return;
  Event event;
  event.mutable_stalled()->set_generation(status_.layout().generation);
  event.mutable_stalled()->set_rank(*rank);
  handlers_.send(event);
}

}  // namespace ivy
