// SPDX-License-Identifier: Apache-2.0
// Acceptor is a thin handle; Listener does the work, for one socket: open_tcp() and open_unix()
// bind it, accept_some() accepts, and admit() lets a local connection through or waits for its
// first bytes (await_first_bytes(), inspect(), sweep() for deadlines). deliver() hands the
// connection to gRPC, reject() closes it with a line in the log.
#include "agent/daemon/net/acceptor.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "agent/daemon/net/agent_log.h"
#include "agent/daemon/net/tls_detection.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"

namespace ivy {
namespace {

using boost::asio::io_context;
using boost::asio::posix::stream_descriptor;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr int kAcceptsPerTurn = 64;  // Limit, so that other work gets its turn.
// Pause before the next accept if no descriptor is free, even with the reserve.
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr auto kSweepInterval = std::chrono::milliseconds(250);
constexpr const char* kEvicted =
    "too many connections are not authenticated yet, and this was the oldest of them";
// gRPC would drop a connection after 20 s without an acknowledgement. A slow link must not end a
// job; the lease decides whether a silent one does.
constexpr int kTcpUserTimeoutMs = 120'000;
// A silent connection is probed at this interval until the timeout above. The peer's kernel answers
// probes, so a suspended launcher stays connected.
constexpr int kTcpKeepAliveS = 30;

// The address of a connected or bound socket, in readable form.
struct ReadableAddress {
  std::string address;
  std::string whole;
  std::uint16_t port = 0;
};

ReadableAddress describe(const SocketAddress& address) {
  return {host_text(address.storage), address_text(address.storage), address.port()};
}

void set_option(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof value);
}

}  // namespace

bool TcpConnections::is_open(const std::string& peer, int descriptor) {
  SocketAddress remote;
  remote.size = sizeof remote.storage;
  return getpeername(descriptor, remote.get(), &remote.size) == 0 && describe(remote).whole == peer;
}

void TcpConnections::shut_down(const std::string& peer, int descriptor) {
  if (!is_open(peer, descriptor)) return;
  agent_log::rejection("rejected " + peer + ": " + kEvicted);
  shutdown(descriptor, SHUT_RDWR);
}

class Acceptor::Listener : public std::enable_shared_from_this<Acceptor::Listener> {
 public:
  enum class Kind { kTls, kPlaintext, kUnix };

  Listener(io_context& loop, Kind kind, HandshakeLimiter* handshakes, AcceptorLimits limits,
           Intake& intake)
      : kind_(kind),
        handshakes_(handshakes),
        limits_(limits),
        intake_(intake),
        socket_(loop),
        pause_(loop),
        sweep_(loop) {}

  Result<void> open_tcp(const std::string& address, std::uint16_t port);
  Result<void> open_unix(const std::string& path);
  void start();
  void stop();

  const ReadableAddress& address() const { return address_; }

 private:
  // A connection whose first bytes have not all arrived.
  struct Waiting {
    stream_descriptor socket;
    ReadableAddress peer;
    Clock::time_point deadline;
  };

  Result<void> prepare_directory(const std::string& path) const;
  Result<void> take_lock(const std::string& path);
  Result<void> listen_on(Descriptor socket, const std::string& what);
  void take_reserve() { reserve_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  void wait_for_connection();
  void accept_some();
  bool accept_failed(int error);
  void admit(Descriptor socket, const SocketAddress& from);
  bool within_margin(int descriptor) const;
  void admit_local(Descriptor socket);
  void await_first_bytes(Descriptor socket, ReadableAddress peer);
  void inspect_later(HandshakeLimiter::Id id);
  void inspect(HandshakeLimiter::Id id);
  void finish(HandshakeLimiter::Id id, const std::string& rejection);
  void start_sweep();
  void sweep();
  void deliver(int descriptor);
  void reject(const std::string& from, const std::string& why);
  void reject_for_want_of_room(const std::string& from, int descriptor);

  Kind kind_;
  HandshakeLimiter* handshakes_;
  AcceptorLimits limits_;
  Intake& intake_;
  stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  boost::asio::steady_timer sweep_;
  bool sweeping_ = false;
  agent_log::RateLimit no_room_lines_{10, 0.2};
  // Closed for a moment when no other descriptor is free, so that a connection can be taken off the
  // queue and closed. Otherwise the queue would remain readable and the loop would spin.
  Descriptor reserve_;
  Descriptor lock_;
  std::string socket_path_;
  ReadableAddress address_;
  std::map<HandshakeLimiter::Id, Waiting> waiting_;
  std::vector<char> peek_buffer_;
};

Result<void> Acceptor::Listener::listen_on(Descriptor socket, const std::string& what) {
  if (listen(socket.get(), SOMAXCONN) != 0)
    return errno_error(Code::kUnavailable, "cannot listen on " + what, errno);
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  getsockname(socket.get(), bound.get(), &bound.size);
  address_ = kind_ == Kind::kUnix ? ReadableAddress{"unix", what, 0} : describe(bound);
  take_reserve();
  if (kind_ == Kind::kTls) peek_buffer_.resize(kMaxHelloBytes);
  socket_.assign(socket.release());
  return {};
}

Result<void> Acceptor::Listener::open_tcp(const std::string& address, std::uint16_t port) {
  SocketAddress where = parse_address(address, port);
  if (!where.is_valid())
    return Error{Code::kInvalidArgument, "\"" + address + "\" is not a numeric address",
                 "write an IPv4 or IPv6 address of this host, such as 0.0.0.0:7411 or [::]:7411"};
  const ReadableAddress readable = describe(where);
  if (kind_ == Kind::kPlaintext && !is_loopback(readable.address))
    return Error{Code::kInvalidArgument, readable.whole + " is not a loopback address",
                 "plaintext is for loopback only; elsewhere use --listen with certificates"};
  Descriptor socket(where.open_socket());
  if (!socket) return errno_error(Code::kUnavailable, "socket for " + readable.whole, errno);
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.storage.ss_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(socket.get(), where.get(), where.size) != 0) {
    const int error = errno;
    const Code code = error == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable;
    Error failure = errno_error(code, "cannot listen on " + readable.whole, error);
    if (code == Code::kAlreadyExists)
      failure.fix = "another program listens there: see `ss -ltnp`, or choose another port";
    if (error == EADDRNOTAVAIL) failure.fix = "no interface has this address: see `ip address`";
    return failure;
  }
  return listen_on(std::move(socket), readable.whole);
}

Result<void> Acceptor::Listener::prepare_directory(const std::string& path) const {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty() || directory[0] != '/')
    return Error{Code::kInvalidArgument, "socket " + path + " is not an absolute path", {}};
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error(Code::kFailedPrecondition, "cannot create directory " + directory, errno);
  struct stat status {};
  if (lstat(directory.c_str(), &status) != 0)
    return errno_error(Code::kFailedPrecondition, "directory " + directory, errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid())
    return Error{Code::kPermissionDenied, directory + " is not a directory of this user",
                 "choose another path with --socket"};
  if ((status.st_mode & 077) != 0)
    return Error{Code::kPermissionDenied, directory + " is accessible to other users",
                 "chmod 700 " + directory + ", or choose another path with --socket"};
  return {};
}

Result<void> Acceptor::Listener::take_lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  Descriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return errno_error(Code::kFailedPrecondition, "cannot open " + lock_path, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return Error{Code::kAlreadyExists, "another agent is listening on " + path,
                 "`ivy-agent status` shows it; a user needs only one agent per host"};
  lock_ = std::move(lock);
  return {};
}

Result<void> Acceptor::Listener::open_unix(const std::string& path) {
  SocketAddress address = unix_address(path);
  if (!address.is_valid())
    return Error{Code::kInvalidArgument, "socket path " + path + " is longer than 107 bytes",
                 "choose a shorter one with --socket"};
  IVY_CHECK(prepare_directory(path));
  IVY_CHECK(take_lock(path));
  Descriptor socket(address.open_socket());
  if (!socket) return errno_error(Code::kUnavailable, "socket for " + path, errno);
  // An agent that answers here would hold the lock, so this is another program: keep its socket.
  const int answer = connect(socket.get(), address.get(), address.size);
  if (answer == 0 || errno == EAGAIN)
    return Error{Code::kAlreadyExists, "another program is listening on " + path,
                 "stop it, or choose another path with --socket"};
  unlink(path.c_str());
  socket.reset(address.open_socket());
  // On Linux the file gets the descriptor's mode, so it is never open to other users.
  fchmod(socket.get(), 0600);
  if (bind(socket.get(), address.get(), address.size) != 0)
    return errno_error(Code::kUnavailable, "cannot bind " + path, errno);
  chmod(path.c_str(), 0600);
  socket_path_ = path;
  return listen_on(std::move(socket), path);
}

void Acceptor::Listener::start() { wait_for_connection(); }

void Acceptor::Listener::stop() {
  error_code ignored;
  socket_.close(ignored);
  pause_.cancel();
  sweep_.cancel();
  for (const auto& [id, waiting] : waiting_) handshakes_->leave(id);
  waiting_.clear();
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
  socket_path_.clear();
  lock_.reset();
}

void Acceptor::Listener::wait_for_connection() {
  socket_.async_wait(stream_descriptor::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       if (error || !self->socket_.is_open()) return;
                       self->accept_some();
                     });
}

void Acceptor::Listener::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    SocketAddress from;
    from.size = sizeof from.storage;
    Descriptor socket(
        accept4(socket_.native_handle(), from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      admit(std::move(socket), from);
      continue;
    }
    if (errno == EAGAIN) break;
    if (!accept_failed(errno)) return;
  }
  wait_for_connection();
}

// Handles a failed accept(). Returns false if accepting continues only after a pause.
bool Acceptor::Listener::accept_failed(int error) {
  // Any other error concerns only this connection, which is closed (see accept(2)).
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return true;
  const std::string reason = std::strerror(error);
  if (error == EMFILE || error == ENFILE) {
    reserve_.reset();
    const Descriptor dropped(
        accept4(socket_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const bool helped = static_cast<bool>(dropped);
    take_reserve();
    if (helped) {
      reject("a connection", "closed immediately: " + reason + "; raise LimitNOFILE of the unit");
      return true;
    }
  }
  agent_log::rejection("cannot accept connections on " + address_.whole + ": " + reason +
                       "; trying again in 0.1 s");
  pause_.expires_after(kPause);
  pause_.async_wait([self = shared_from_this()](const error_code& stopped) {
    if (stopped || !self->socket_.is_open()) return;
    if (!self->reserve_) self->take_reserve();
    self->wait_for_connection();
  });
  return false;
}

bool Acceptor::Listener::within_margin(int descriptor) const {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const auto allowed = static_cast<std::int64_t>(limit.rlim_cur);
  std::int64_t margin = std::min<std::int64_t>(limits_.descriptor_margin, allowed / 4);
  // Keeps `ivy-agent status` and `drain` working when unauthenticated peers have taken all others.
  if (kind_ == Kind::kUnix) margin /= 2;
  return descriptor >= allowed - margin;
}

void Acceptor::Listener::admit(Descriptor socket, const SocketAddress& from) {
  const ReadableAddress peer = describe(from);
  if (within_margin(socket.get())) return reject_for_want_of_room(peer.whole, socket.get());
  if (kind_ == Kind::kUnix) return admit_local(std::move(socket));
  disable_nagle(socket.get());
  if (kind_ == Kind::kPlaintext) return deliver(socket.release());
  await_first_bytes(std::move(socket), peer);
}

void Acceptor::Listener::admit_local(Descriptor socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return reject("a connection", "the kernel does not report its user id");
  if (peer.uid != geteuid() && peer.uid != 0)
    return reject("pid " + std::to_string(peer.pid) + " of user id " + std::to_string(peer.uid),
                  "this agent serves only user id " + std::to_string(geteuid()));
  deliver(socket.release());
}

void Acceptor::Listener::await_first_bytes(Descriptor socket, ReadableAddress peer) {
  const auto now = steady_now();
  handshakes_->expire(now);
  const HandshakeLimiter::EnterResult entered = handshakes_->enter(peer.address, peer.whole, now);
  if (!entered.id) return reject(peer.whole, entered.why);
  if (entered.evicted) {
    // It may wait at another listener, which closes it at its next sweep.
    const auto evicted = waiting_.find(*entered.evicted);
    if (evicted != waiting_.end()) {
      reject(evicted->second.peer.whole, std::string(kEvicted) + ": " + entered.why);
      waiting_.erase(evicted);
    }
  }
  stream_descriptor watched(socket_.get_executor());
  error_code error;
  watched.assign(socket.get(), error);
  if (error) {
    handshakes_->leave(*entered.id);
    return reject(peer.whole, "cannot watch the connection: " + error.message());
  }
  socket.release();
  waiting_.emplace(*entered.id,
                   Waiting{std::move(watched), std::move(peer), now + limits_.hello_deadline});
  inspect(*entered.id);
  start_sweep();
}

void Acceptor::Listener::inspect_later(HandshakeLimiter::Id id) {
  const auto found = waiting_.find(id);
  found->second.socket.async_wait(stream_descriptor::wait_read,
                                  [self = shared_from_this(), id](const error_code& error) {
                                    if (!error) self->inspect(id);
                                  });
}

void Acceptor::Listener::inspect(HandshakeLimiter::Id id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  Waiting& waiting = found->second;
  const int descriptor = waiting.socket.native_handle();
  const ssize_t count = recv(descriptor, peek_buffer_.data(), peek_buffer_.size(), MSG_PEEK);
  if (count < 0 && errno != EAGAIN) return finish(id, std::strerror(errno));
  const std::string_view seen(peek_buffer_.data(), count < 0 ? 0 : static_cast<std::size_t>(count));
  const TlsDetection detected = detect_tls13(seen);
  if (detected.kind == TlsDetection::Kind::kOther)
    return finish(id,
                  "it is " + detected.what + "; launchers connect with TLS 1.3 and a certificate");
  if (detected.kind == TlsDetection::Kind::kIncomplete) {
    // The peer has closed its side after its last bytes.
    tcp_info info{};
    socklen_t length = sizeof info;
    const bool closed = getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
                        info.tcpi_state != TCP_ESTABLISHED;
    if (count == 0 || closed)
      return finish(id, "it closed the connection and was " + describe_unfinished(seen));
    // The socket becomes readable only when this many bytes have arrived. Otherwise every byte of a
    // slow sender would wake the loop, and bytes that were seen before would do so for ever.
    set_option(descriptor, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(detected.needed));
    return inspect_later(id);
  }
  set_option(descriptor, SOL_SOCKET, SO_RCVLOWAT, 1);
  if (!handshakes_->hand_over(id, steady_now(), descriptor)) return finish(id, kEvicted);
  const int released = waiting.socket.release();
  waiting_.erase(found);
  deliver(released);
}

void Acceptor::Listener::finish(HandshakeLimiter::Id id, const std::string& rejection) {
  const auto found = waiting_.find(id);
  reject(found->second.peer.whole, rejection);
  handshakes_->leave(id);
  waiting_.erase(found);
}

void Acceptor::Listener::start_sweep() {
  if (sweeping_ || waiting_.empty()) return;
  sweeping_ = true;
  sweep_.expires_after(kSweepInterval);
  sweep_.async_wait([self = shared_from_this()](const error_code& stopped) {
    self->sweeping_ = false;
    if (!stopped) self->sweep();
  });
}

void Acceptor::Listener::sweep() {
  const auto now = steady_now();
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    const HandshakeLimiter::Id id = waiting++->first;
    if (!handshakes_->holds(id)) finish(id, kEvicted);
  }
  while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
    const auto oldest = waiting_.begin();
    const ssize_t count = recv(oldest->second.socket.native_handle(), peek_buffer_.data(),
                               peek_buffer_.size(), MSG_PEEK);
    const std::string_view seen(peek_buffer_.data(),
                                count < 0 ? 0 : static_cast<std::size_t>(count));
    finish(oldest->first, "after " + std::to_string(limits_.hello_deadline.count()) +
                              " ms it was still " + describe_unfinished(seen));
  }
  start_sweep();
}

void Acceptor::Listener::deliver(int descriptor) {
  if (kind_ != Kind::kUnix) {
    set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, kTcpUserTimeoutMs);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kTcpKeepAliveS);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kTcpKeepAliveS);
    set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  }
  Intake::NewConnectionParameters connection;
  connection.fd = descriptor;
  intake_.HandleNewConnection(&connection);
}

void Acceptor::Listener::reject(const std::string& from, const std::string& why) {
  agent_log::rejection("rejected " + from + " on " + address_.whole + ": " + why);
}

// Rejects a connection for lack of descriptors. Logs it outside the rate limit of rejected peers,
// because the administrator must see it.
void Acceptor::Listener::reject_for_want_of_room(const std::string& from, int descriptor) {
  const std::string why =
      "too many descriptors are open (this would be number " + std::to_string(descriptor) +
      "), and the remaining ones are reserved for running jobs; raise LimitNOFILE of the unit";
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_now().time_since_epoch());
  if (!no_room_lines_.admit(now.count())) return reject(from, why);
  agent_log::warning("rejected " + from + " on " + address_.whole + ": " + why);
}

Acceptor::Acceptor(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {
  listener_->start();
}
Acceptor::~Acceptor() { listener_->stop(); }
const std::string& Acceptor::address() const { return listener_->address().whole; }
std::uint16_t Acceptor::port() const { return listener_->address().port; }

Result<std::unique_ptr<Acceptor>> Acceptor::listen_tls(io_context& loop, const std::string& address,
                                                       std::uint16_t port,
                                                       HandshakeLimiter& handshakes,
                                                       AcceptorLimits limits, Intake& intake) {
  auto listener =
      std::make_shared<Listener>(loop, Listener::Kind::kTls, &handshakes, limits, intake);
  IVY_CHECK(listener->open_tcp(address, port));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(listener)));
}

Result<std::unique_ptr<Acceptor>> Acceptor::listen_plaintext(io_context& loop,
                                                             const std::string& address,
                                                             std::uint16_t port,
                                                             AcceptorLimits limits,
                                                             Intake& intake) {
  auto listener =
      std::make_shared<Listener>(loop, Listener::Kind::kPlaintext, nullptr, limits, intake);
  IVY_CHECK(listener->open_tcp(address, port));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(listener)));
}

Result<std::unique_ptr<Acceptor>> Acceptor::listen_unix(io_context& loop, const std::string& path,
                                                        AcceptorLimits limits, Intake& intake) {
  auto listener = std::make_shared<Listener>(loop, Listener::Kind::kUnix, nullptr, limits, intake);
  IVY_CHECK(listener->open_unix(path));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(listener)));
}

}  // namespace ivy
