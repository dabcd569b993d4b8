// SPDX-License-Identifier: Apache-2.0
// A turn of the loop: wait_for_events() finds sockets that are ready, serve_event() reads requests
// (read_some(), receive()), the engine's replies are put into the buffers of their connections
// (hand_out()), and end_turn() sends them and lets waiting connections continue.
#include "rendezvous/server/server.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"
#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr std::size_t kReadBytes = 256u << 10;
constexpr std::uint64_t kTickNs = 250'000'000;

// Replaces a closed connection; destroying that one makes its client leave the engine.
class ClosedConnection : public Connection {
 public:
  Result<void> receive(std::string_view, std::uint64_t, Replies&) override { return {}; }
  Result<void> reply(const Reply&) override { return {}; }
  ClientId client() const override { return 0; }
  bool is_authenticated() const override { return true; }
};

// Does not call set_user_timeout(), which would also disconnect a client that is only stopped.
void set_options(int fd) {
  disable_nagle(fd);
  keep_alive(fd, kKeepAlive);
}

}  // namespace

Server::Server(boost::asio::io_context& loop, ServerOptions options)
    : loop_(loop),
      options_(std::move(options)),
      identity_{options_.job_id, options_.token, random_bytes(kEpochBytes)},
      engine_(options_.engine),
      log_(options_.log),
      admission_(options_.torch_peers, log_),
      listeners_(loop, log_),
      buffer_(std::make_unique<char[]>(kReadBytes)),
      ready_(loop, dup(readiness_.descriptor())),
      timer_(loop) {
  progress_.last_ns = monotonic_ns();
  Replies none;
  engine_.begin_generation(options_.generation, none);
  tick();
  wait_for_events();
}

Server::~Server() { stop(); }

void Server::listen(int listening_fd, Dialect dialect) {
  listeners_.add(listening_fd, [this, dialect](Descriptor socket, const sockaddr_storage& from) {
    take_client(std::move(socket), from, dialect);
  });
}

void Server::answer(Replies& replies) {
  hand_out(replies);
  end_turn();
}

// Adds an accepted connection. Returns null if it is rejected.
SessionPointer Server::take_client(Descriptor socket, const sockaddr_storage& from,
                                   Dialect dialect) {
  const ServerLimits& limits = options_.limits;
  const bool is_torch = dialect == Dialect::kTorch;
  std::optional<std::string> rejection;
  if (sessions_.size() >= limits.connections)
    rejection = "there are already " + std::to_string(sessions_.size()) + " connections";
  else if (is_torch && sessions_.torch_count() >= limits.torch_connections)
    rejection = "torch's clients have " + std::to_string(sessions_.torch_count()) +
                " connections, their limit";
  else if (is_torch)
    rejection = admission_.reject_torch(socket.get(), host_text(from));
  if (rejection) {
    if (!rejection->empty())
      log_("connection from " + host_text(from) + " rejected: " + *rejection);
    return nullptr;
  }
  set_options(socket.get());
  const std::string peer = address_text(from);
  auto session = std::make_shared<Session>();
  session->socket = std::move(socket);
  session->connection = is_torch ? make_torch_connection(engine_, peer)
                                 : make_native_connection(engine_, identity_, peer);
  session->address = peer;
  session->dialect = dialect;
  session->since_ns = monotonic_ns();
  if (!is_torch && sessions_.unauthenticated_count() >= limits.unauthenticated)
    disconnect(sessions_.oldest_unauthenticated(), "too many clients that have not authenticated");
  sessions_.add(session);
  wait_readable(session);
  return session;
}

void Server::wait_for_events() {
  ready_.async_wait(stream_descriptor::wait_read, alive_.guard([this] {
    closed_.clear();
    for (const Readiness::Event& event : readiness_.take()) {
      Session* const session = static_cast<Session*>(event.owner);
      if (!session->closed) serve_event(SessionPointer(*session->position), event);
    }
    if (!alive_.has_ended()) wait_for_events();
  }));
}

void Server::serve_event(const SessionPointer& session, const Readiness::Event& event) {
  if (session->wanted.write && (event.writable || event.broken)) {
    session->wanted.write = false;
    touch(session);
    end_turn();
  }
  if (session->closed || !(event.readable || event.broken)) return wait_readable(session);
  // Other clients may have filled its buffer since the wait began.
  wait_readable(session);
  if (session->wanted.read) return read_some(session);
  // The closed connection is noticed at the next read; until then the set would report the broken
  // socket in every turn.
  if (event.broken) session->stop_watching(readiness_);
}

// Watches for more requests, unless earlier ones must be served or replies be sent first.
void Server::wait_readable(const SessionPointer& session) {
  if (session->closed) return;
  session->wanted.read = !session->connection->has_more() && reads_its_replies(*session) &&
                         !session->connection->is_over();
  if (!session->watch(readiness_)) disconnect(session, "the system cannot watch more sockets");
}

void Server::read_some(const SessionPointer& session) {
  const ssize_t count = recv(session->socket.get(), buffer_.get(), kReadBytes, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return disconnect(session, {});
  receive(session, std::string_view(buffer_.get(), static_cast<std::size_t>(count)));
  end_turn();
  wait_readable(session);
}

void Server::receive(const SessionPointer& session, std::string_view bytes) {
  Replies replies;
  const Result<void> served = session->connection->receive(bytes, monotonic_ns(), replies);
  sessions_.update(*session);
  touch(session);
  sessions_.count_bytes(*session);
  hand_out(replies);
  if (!served.ok()) {
    send_some(session);
    disconnect(session, served.error().message);
  }
}

void Server::touch(const SessionPointer& session) {
  if (session->touched || session->closed) return;
  session->touched = true;
  touched_.push_back(session);
}

void Server::hand_out(Replies& replies) {
  for (const Reply& reply : replies) {
    const SessionPointer session = sessions_.find(reply.client);
    if (session == nullptr) continue;
    touch(session);
    Connection& connection = *session->connection;
    const bool is_change = std::holds_alternative<Changed>(reply.body);
    if (is_change && !reads_its_replies(*session) && connection.overflow(reply)) continue;
    const Result<void> taken = connection.reply(reply);
    sessions_.count_bytes(*session);
    if (!taken.ok()) {
      disconnect(session, taken.error().message);
    } else if (session->unsent_bytes() > options_.limits.unread_close_bytes) {
      disconnect(session,
                 "it does not read its replies: " + std::to_string(session->unsent_bytes()) +
                     " bytes are waiting for it");
    }
  }
}

// A connection with more buffered requests gets another turn after all others.
void Server::end_turn() {
  if (alive_.has_ended()) return;
  Replies due;
  const std::uint64_t now_ns = monotonic_ns();
  const std::uint64_t next_ns = engine_.advance(now_ns, due);
  hand_out(due);
  if (const std::uint64_t changes = engine_.changes(); changes != progress_.changes)
    progress_ = {changes, now_ns};
  serve_touched();
  while (sessions_.torch_bytes() > options_.limits.torch_bytes) {
    const SessionPointer most = sessions_.largest_torch();
    disconnect(most, "torch's clients use " + std::to_string(sessions_.torch_bytes()) +
                         " bytes of the store, more than their limit, and this one uses " +
                         std::to_string(most->counted_bytes) + " of them");
  }
  if (!touched_.empty() && !std::exchange(turn_posted_, true)) {
    boost::asio::post(loop_, alive_.guard([this] {
      turn_posted_ = false;
      end_turn();
    }));
  }
  // A wait that began in this turn may expire before the next tick.
  if (next_ns < timer_ns_) set_timer(next_ns);
}

void Server::serve_touched() {
  for (const SessionPointer& session : std::exchange(touched_, {})) {
    session->touched = false;
    if (!session->closed) send_some(session);
    if (session->closed) continue;
    if (session->connection->has_more() && reads_its_replies(*session)) {
      receive(session, {});
    } else {
      wait_readable(session);
    }
  }
}

void Server::send_some(const SessionPointer& session) {
  if (session->wanted.write) return;
  const Sent sent =
      store::send_some(session->socket.get(), session->connection->unsent, session->sent);
  if (sent == Sent::kBroken) return disconnect(session, {});
  sessions_.count_bytes(*session);
  if (sent == Sent::kAll) {
    if (session->connection->is_over()) disconnect(session, {});
    return;
  }
  session->wanted.write = true;
  if (!session->watch(readiness_)) disconnect(session, "the system cannot watch more sockets");
}

void Server::disconnect(const SessionPointer& held, const std::string& because) {
  const SessionPointer session = held;  // `held` may be an element of the list.
  if (session->closed) return;
  if (!because.empty()) log_("client " + session->address + " is disconnected: " + because);
  sessions_.remove(*session);
  session->closed = true;
  session->stop_watching(readiness_);
  session->socket.reset();
  session->connection = std::make_unique<ClosedConnection>();
  closed_.push_back(session);
}

void Server::begin_generation(std::uint32_t generation) {
  Replies replies;
  engine_.begin_generation(generation, replies);
  hand_out(replies);
  end_turn();
  const std::vector<SessionPointer> previous = sessions_.all();
  for (const SessionPointer& session : previous) disconnect(session, {});
  // Connections that are not accepted yet also belong to the previous generation.
  listeners_.reject_pending();
  if (!previous.empty())
    log_(std::to_string(previous.size()) + " clients of the previous generation are disconnected");
}

void Server::stop() {
  alive_.end();
  timer_.cancel();
  boost::system::error_code ignored;
  ready_.close(ignored);
  listeners_.close();
  for (const SessionPointer& session : sessions_.all()) disconnect(session, {});
}

void Server::tick() {
  const std::uint64_t now_ns = monotonic_ns();
  timer_ns_ = kNever;
  closed_.clear();
  end_turn();
  for (SessionPointer oldest = sessions_.oldest_unauthenticated();
       oldest != nullptr && now_ns - oldest->since_ns > options_.limits.handshake_ns;
       oldest = sessions_.oldest_unauthenticated())
    disconnect(oldest, "it did not authenticate in time");
  listeners_.retry();
  log_.tick();
  if (timer_ns_ == kNever) set_timer(kNever);
}

// Schedules tick() for this time, or for kTickNs from now if that is earlier.
void Server::set_timer(std::uint64_t next_ns) {
  const std::uint64_t now_ns = monotonic_ns();
  timer_ns_ = std::clamp(next_ns, now_ns, now_ns + kTickNs);
  timer_.expires_after(std::chrono::nanoseconds(timer_ns_ - now_ns));
  timer_.async_wait(alive_.guard([this] { tick(); }));
}

ServerLimits server_limits(std::size_t torch_connections) {
  // A rank has four connections, so all ranks may read or write the longest value at once.
  constexpr std::size_t kEach = kMaxValueBytes / 4;
  constexpr std::size_t kMin = kMaxTorchRequestBytes;
  constexpr std::size_t kMax = 1024 * kMaxValueBytes;
  ServerLimits limits;
  rlimit descriptors{};
  if (torch_connections != 0) {
    limits.torch_connections = torch_connections;
    limits.torch_bytes = std::min(kMax, kMin + std::min(torch_connections, kMax / kEach) * kEach);
  }
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0)
    limits.torch_connections =
        std::min<std::size_t>(limits.torch_connections, descriptors.rlim_cur / 2);
  return limits;
}

std::string address_of(int fd) { return address_text(own_address(fd).storage); }

}  // namespace ivy::store
