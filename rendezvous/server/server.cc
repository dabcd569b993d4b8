#include "rendezvous/server/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "rendezvous/dialects/connection.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/log/held_replies.h"
#include "rendezvous/log/wal_file.h"
#include "rendezvous/server/peer_owner.h"
#include "rendezvous/server/readiness.h"

namespace ivy::store {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr std::size_t kReadBytes = 256u << 10;
// The most connections accepted in one turn, so that a storm of them does not delay connected
// clients.
constexpr int kAcceptsPerTurn = 64;
// Usually more than the backlog that the kernel allows (net.core.somaxconn).
constexpr std::size_t kMaxRefused = 16'384;
// The shortest torch request: an opcode and the length of a key.
constexpr ssize_t kLeastRequest = 9;
constexpr auto kTick = std::chrono::milliseconds(250);
constexpr int kLogLinesPerTick = 4;
constexpr int kKeepIdleSeconds = 30;
constexpr int kKeepIntervalSeconds = 10;
constexpr int kKeepProbes = 3;
// Limits the changes that are not on the disk yet, and the replies that wait for them. Beyond it no
// client is read: a disk that is slower than its clients must not fill the memory.
constexpr std::size_t kMaxUncommittedBytes = 64u << 20;

std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
}

std::string text_of(const sockaddr_storage& address, bool with_port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return with_port ? std::string(text.data()) + ":" + std::to_string(ntohs(v4.sin_port))
                     : std::string(text.data());
  }
  if (address.ss_family != AF_INET6) return "unix socket";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text.data(), text.size());
    return with_port ? std::string(text.data()) + ":" + std::to_string(ntohs(v6.sin6_port))
                     : std::string(text.data());
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return with_port ? "[" + std::string(text.data()) + "]:" + std::to_string(ntohs(v6.sin6_port))
                   : std::string(text.data());
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "unix socket";
}

// Replaces a closed connection, whose destructor makes its client leave the engine.
class ClosedConnection : public Connection {
 public:
  Result<void> receive(std::string_view, std::uint64_t, Replies&) override { return {}; }
  Result<void> reply(const Reply&) override { return {}; }
  ClientId client() const override { return 0; }
  bool is_authenticated() const override { return true; }
};

}  // namespace

class Server::Core : public std::enable_shared_from_this<Server::Core> {
 public:
  Core(boost::asio::io_context& loop, ServerOptions options)
      : loop_(loop),
        options_(std::move(options)),
        store_{options_.job_id, options_.token,
               options_.epoch.empty() ? random_bytes(kEpochBytes) : options_.epoch},
        engine_(options_.engine),
        front_(options_.front == nullptr ? engine_ : *options_.front),
        buffer_(std::make_unique<char[]>(kReadBytes)),
        ready_(loop, readiness_.descriptor()),
        timer_(loop),
        last_progress_ns_(steady_ns()) {
    Replies none;
    engine_.begin_generation(options_.generation, none);
  }
  void answer(Replies& replies) {
    deliver(replies);
    end_turn();
  }
  void go_on() {
    for (const LinkPointer& link : links_) settle(link);
    end_turn();
  }
  std::uint64_t request_count() const { return engine_.requests(); }

  ~Core() { ready_.release(); }  // readiness_ closes the descriptor.

  void start() {
    tick();
    wait_for_events();
  }
  Result<void> keep_in(const std::string& directory);
  void listen(int listening_fd, Dialect dialect) {
    auto& listener =
        listeners_.emplace_back(Listener{stream_descriptor(loop_, listening_fd), dialect});
    wait_for_clients(listener);
  }
  void adopt(int fd, std::string_view arrived);
  void begin_generation(std::uint32_t generation);
  std::string why() const { return explain(engine_.picture(), steady_ns()); }
  std::uint64_t last_progress_ns() const { return last_progress_ns_; }
  bool anybody_waits() const { return engine_.open_requests() > 0; }
  std::optional<std::uint64_t> longest_wait_since_ns() const;
  std::size_t connection_count() const { return links_.size(); }
  void stop_listening();
  void refuse_joins(std::string why) { store_.refusal = std::move(why); }
  void stop();

 private:
  struct Listener {
    stream_descriptor socket;
    Dialect dialect;
    bool paused = false;   // No descriptor was left; tried again at the next tick.
    bool starved = false;  // That was logged.
  };
  struct Link {
    Link(int fd_, std::unique_ptr<Connection> connection_)
        : fd(fd_), connection(std::move(connection_)) {}
    const int fd;
    std::unique_ptr<Connection> connection;
    std::string address;
    Dialect dialect = Dialect::kNative;
    std::uint64_t since_ns = 0;
    std::size_t sent = 0;  // Bytes of connection->unsent already sent.
    Wanted wanted;         // To be watched for next.
    Wanted watched;        // What the set watches it for.
    bool in_set = false;
    bool touched = false;
    bool closed = false;
    std::list<std::shared_ptr<Link>>::iterator place;       // In links_.
    std::list<Link*>::iterator unauthenticated_place = {};  // While it is not authenticated.
    bool unauthenticated = false;
    std::unordered_set<ClientId> speaks_for;  // A leaf's clients.
    std::size_t counted_bytes = 0;            // Its part of torch_bytes_.
  };
  using LinkPointer = std::shared_ptr<Link>;

  static std::size_t backlog(const Link& link) {
    return link.connection->unsent.size() - link.sent;
  }
  bool reads_its_replies(const Link& link) const {
    return backlog(link) <= options_.limits.unread_pause_bytes && front_.takes_more();
  }
  bool may_go_on(const Link& link) const { return reads_its_replies(link) && !disk_is_behind(); }
  bool disk_is_behind() const {
    return wal_ != nullptr &&
           (wal_->pending_bytes() > kMaxUncommittedBytes || held_.bytes() > kMaxUncommittedBytes);
  }
  // A leaf's limit is the sum of its clients' limits.
  std::size_t close_bytes(const Link& link) const {
    return options_.limits.unread_close_bytes *
           std::max<std::size_t>(1, link.connection->client_count());
  }
  void note_clients(Link& link);

  void wait_for_clients(Listener& listener);
  void take_clients(Listener& listener);
  LinkPointer take_client(int fd, const sockaddr_storage& from, Dialect dialect);
  std::optional<std::string> refusal(int fd, const std::string& address, Dialect dialect);
  std::optional<std::string> refusal_of_owner(int fd);
  void count_bytes(Link& link);
  void keep_torch_within_bounds();
  void wait_for_events();
  void serve_events();
  void serve_event(const LinkPointer& link, const Readiness::Event& event);
  void watch(const LinkPointer& link);
  void wait_readable(const LinkPointer& link);
  void read_some(const LinkPointer& link);
  void receive(const LinkPointer& link, std::string_view bytes);
  void deliver(Replies& replies);
  void hand_out(Replies& replies);
  void wait_for_disk();
  void on_disk();
  void lose_log(const Error& error);
  void settle(const LinkPointer& link);
  void authenticated(Link& link);
  void refuse_backlog(Listener& listener);
  void end_turn();
  void send_touched();
  void send_some(const LinkPointer& link);
  void close(const LinkPointer& link, const std::string& because);
  void tick();
  void set_timer(std::uint64_t next_ns);
  void log(const std::string& text);

  boost::asio::io_context& loop_;
  const ServerOptions options_;
  StoreIdentity store_;
  Engine engine_;  // Unused if there is another front.
  StoreFront& front_;
  std::unique_ptr<WalFile> wal_;  // Only with keep_in.
  std::unique_ptr<stream_descriptor> disk_ready_;
  HeldReplies held_;
  std::unique_ptr<char[]> buffer_;
  Readiness readiness_;
  stream_descriptor ready_;
  boost::asio::steady_timer timer_;
  std::list<Listener> listeners_;
  std::list<LinkPointer> links_;
  std::list<Link*> unauthenticated_;  // Oldest first.
  std::unordered_map<ClientId, Link*> by_client_;
  PeerOwners owners_;
  bool said_owners_unknown_ = false;
  std::size_t torch_links_ = 0;
  std::size_t torch_bytes_ = 0;
  std::vector<LinkPointer> closed_;   // Closed in this turn; pending events may name them.
  std::vector<LinkPointer> touched_;  // Has replies to send or requests to serve.
  std::uint64_t timer_ns_ = kNever;   // When tick() comes at the latest.
  std::uint64_t changes_ = 0;         // The front's changes() at the end of the last turn.
  bool turn_posted_ = false;
  std::uint64_t last_progress_ns_;
  int log_lines_left_ = kLogLinesPerTick;
  std::size_t log_lines_dropped_ = 0;
  bool stopped_ = false;
};

void Server::Core::wait_for_clients(Listener& listener) {
  listener.socket.async_wait(
      stream_descriptor::wait_read,
      [self = shared_from_this(), &listener](const boost::system::error_code& error) {
        if (error || self->stopped_) return;
        self->take_clients(listener);
        if (!listener.paused) self->wait_for_clients(listener);
      });
}

void Server::Core::take_clients(Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    const int fd = accept4(listener.socket.native_handle(), reinterpret_cast<sockaddr*>(&from),
                           &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      listener.starved = false;
      take_client(fd, from, listener.dialect);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!std::exchange(listener.starved, true)) {
        log(std::string("no connection can be taken: ") + std::strerror(errno) +
            "; trying again 4 times per second");
      }
      listener.paused = true;
      return;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    return;
  }
}

// Returns why this connection is refused, or nothing if it may be a client. An empty text means a
// refusal that is not logged.
std::optional<std::string> Server::Core::refusal(int fd, const std::string& address,
                                                 Dialect dialect) {
  if (links_.size() >= options_.limits.connections)
    return "there are " + std::to_string(links_.size()) + " already";
  if (dialect == Dialect::kNative) return std::nullopt;
  const std::vector<std::string>& peers = options_.torch_peers;
  if (!is_loopback(address) && std::find(peers.begin(), peers.end(), address) == peers.end())
    return "it is no host of this job";
  if (torch_links_ >= options_.limits.torch_connections)
    return "torch's clients have " + std::to_string(torch_links_) + " connections, their limit";
  return refusal_of_owner(fd);
}

std::optional<std::string> Server::Core::refusal_of_owner(int fd) {
  const PeerOwners::Owner owner = owners_.of(fd);
  std::array<char, kLeastRequest> begin;
  switch (owner.where) {
    case PeerOwners::Where::kElsewhere:
      return std::nullopt;
    case PeerOwners::Where::kHere:
      if (owner.user == 0 || owner.user == geteuid()) return std::nullopt;
      return "it is user " + std::to_string(owner.user) + "'s, the job is user " +
             std::to_string(geteuid()) + "'s";
    case PeerOwners::Where::kGone:
      // A closed peer is a port scanner, unless it has sent enough for a request.
      if (recv(fd, begin.data(), begin.size(), MSG_PEEK | MSG_DONTWAIT) < kLeastRequest)
        return std::string();
      return "it had hung up before it could be told whose it is, and is not served";
    case PeerOwners::Where::kUnknown:
      break;
  }
  if (!std::exchange(said_owners_unknown_, true)) {
    log("the system does not tell whose connections of this host are (" + owners_.why_unknown() +
        "): every user of it may be a client of torch's dialect");
  }
  return std::nullopt;
}

// Adds an accepted connection; returns null if it is refused.
Server::Core::LinkPointer Server::Core::take_client(int fd, const sockaddr_storage& from,
                                                    Dialect dialect) {
  const std::string address = text_of(from, false);
  if (const std::optional<std::string> why = refusal(fd, address, dialect)) {
    if (!why->empty()) log("connection from " + address + " refused: " + *why);
    ::close(fd);
    return nullptr;
  }
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // Keepalive: the clients of a host that vanished are gone after a minute. No TCP_USER_TIMEOUT:
  // that would also end a client that is only stopped.
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleSeconds, sizeof kKeepIdleSeconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepIntervalSeconds, sizeof kKeepIntervalSeconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepProbes, sizeof kKeepProbes);
  const std::string peer = text_of(from, true);
  auto link = std::make_shared<Link>(
      fd, dialect == Dialect::kNative
              ? make_native_connection(front_, store_, peer,
                                       options_.front == nullptr ? &engine_ : nullptr)
              : make_torch_connection(front_, peer));
  link->address = peer;
  link->dialect = dialect;
  link->since_ns = steady_ns();
  link->place = links_.insert(links_.end(), link);
  torch_links_ += dialect == Dialect::kTorch ? 1 : 0;
  if (!link->connection->is_authenticated()) {
    if (unauthenticated_.size() >= options_.limits.unauthenticated)
      close((*unauthenticated_.front()->place), "too many clients that have not proved themselves");
    link->unauthenticated_place = unauthenticated_.insert(unauthenticated_.end(), link.get());
    link->unauthenticated = true;
  }
  wait_readable(link);
  return link;
}

void Server::Core::adopt(int fd, std::string_view arrived) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length);
  const LinkPointer link = take_client(fd, from, Dialect::kNative);
  if (link == nullptr) return;
  receive(link, arrived);
  end_turn();
}

void Server::Core::authenticated(Link& link) {
  if (!link.unauthenticated || !link.connection->is_authenticated()) return;
  unauthenticated_.erase(link.unauthenticated_place);
  link.unauthenticated = false;
}

void Server::Core::wait_for_events() {
  ready_.async_wait(stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error || self->stopped_) return;
                      self->serve_events();
                      if (!self->stopped_) self->wait_for_events();
                    });
}

void Server::Core::serve_events() {
  closed_.clear();
  for (const Readiness::Event& event : readiness_.take()) {
    Link* const link = static_cast<Link*>(event.owner);
    if (!link->closed) serve_event(LinkPointer(*link->place), event);
  }
}

void Server::Core::serve_event(const LinkPointer& link, const Readiness::Event& event) {
  if (link->wanted.write && (event.writable || event.broken)) {
    link->wanted.write = false;
    settle(link);
    end_turn();
    if (!link->closed) watch(link);
  }
  if (link->closed || !(event.readable || event.broken)) return;
  // Other clients may have filled its buffer since the wait began.
  wait_readable(link);
  if (link->wanted.read) return read_some(link);
  // The peer's end is noticed at the next read; until then the set would report the broken socket
  // in every turn.
  if (event.broken && link->in_set) {
    readiness_.remove(link->fd);
    link->in_set = false;
  }
}

void Server::Core::watch(const LinkPointer& link) {
  if (link->in_set && link->watched == link->wanted) return;
  if (link->in_set) {
    readiness_.change(link->fd, link.get(), link->wanted);
  } else if (link->wanted == Wanted{}) {
    return;
  } else if (!readiness_.add(link->fd, link.get(), link->wanted)) {
    return close(link, "the system watches no more sockets");
  }
  link->in_set = true;
  link->watched = link->wanted;
}

void Server::Core::wait_readable(const LinkPointer& link) {
  if (link->closed) return;
  // Read no more before earlier requests are served and replies are sent.
  link->wanted.read = !link->connection->has_more() && may_go_on(*link);
  watch(link);
}

void Server::Core::read_some(const LinkPointer& link) {
  const ssize_t count = recv(link->fd, buffer_.get(), kReadBytes, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return close(link, {});
  receive(link, std::string_view(buffer_.get(), static_cast<std::size_t>(count)));
  end_turn();
  wait_readable(link);
}

void Server::Core::receive(const LinkPointer& link, std::string_view bytes) {
  Replies replies;
  const Result<void> served = link->connection->receive(bytes, steady_ns(), replies);
  authenticated(*link);
  if (const ClientId client = link->connection->client(); client != 0)
    by_client_[client] = link.get();
  note_clients(*link);
  settle(link);
  count_bytes(*link);
  deliver(replies);
  if (!served.ok()) {
    send_some(link);
    close(link, served.error().message);
  }
}

void Server::Core::note_clients(Link& link) {
  for (const ClientId joined : link.connection->take_joined()) {
    by_client_[joined] = &link;
    link.speaks_for.insert(joined);
  }
  for (const ClientId left : link.connection->take_left()) {
    by_client_.erase(left);
    link.speaks_for.erase(left);
  }
}

void Server::Core::count_bytes(Link& link) {
  if (link.dialect != Dialect::kTorch) return;
  const std::size_t now = link.connection->kept_bytes() + link.connection->unsent.size();
  torch_bytes_ = torch_bytes_ - link.counted_bytes + now;
  link.counted_bytes = now;
}

void Server::Core::keep_torch_within_bounds() {
  while (torch_bytes_ > options_.limits.torch_bytes) {
    const auto most = std::max_element(links_.begin(), links_.end(),
                                       [](const LinkPointer& one, const LinkPointer& other) {
                                         return one->counted_bytes < other->counted_bytes;
                                       });
    close(*most, "torch's clients make the store keep " + std::to_string(torch_bytes_) +
                     " bytes, beyond their limit, and this one " +
                     std::to_string((*most)->counted_bytes) + " of them");
  }
}

// Puts this connection on the list of those that have something to send or to serve.
void Server::Core::settle(const LinkPointer& link) {
  if (link->touched || link->closed) return;
  link->touched = true;
  touched_.push_back(link);
}

void Server::Core::deliver(Replies& replies) {
  if (wal_ != nullptr && (!held_.empty() || wal_->recorded() > wal_->committed()))
    return held_.hold(wal_->recorded(), replies);
  hand_out(replies);
}

void Server::Core::hand_out(Replies& replies) {
  for (const Reply& reply : replies) {
    const auto found = by_client_.find(reply.client);
    if (found == by_client_.end()) continue;
    const LinkPointer link = *found->second->place;
    settle(link);
    const bool is_change = std::holds_alternative<Changed>(reply.body);
    if (is_change && !reads_its_replies(*link) && link->connection->overflow(reply)) continue;
    const Result<void> taken = link->connection->reply(reply);
    count_bytes(*link);
    if (!taken.ok()) {
      close(link, taken.error().message);
    } else if (backlog(*link) > close_bytes(*link)) {
      close(link, "it does not read: " + std::to_string(backlog(*link)) +
                      " bytes of replies wait for it");
    }
  }
}

// Finishes a turn of the loop: sends the replies it has made, and serves requests that had to wait
// for that. A connection with more buffered requests gets another turn, behind all others.
void Server::Core::end_turn() {
  if (stopped_) return;  // `front` may be gone by now.
  Replies due;
  const std::uint64_t next = front_.advance(steady_ns(), due);
  deliver(due);
  if (const std::uint64_t changes = front_.changes(); changes != changes_) {
    changes_ = changes;
    last_progress_ns_ = steady_ns();
  }
  if (wal_ != nullptr && !stopped_) wal_->commit();
  send_touched();
  keep_torch_within_bounds();
  if (!touched_.empty() && !turn_posted_) {
    turn_posted_ = true;
    boost::asio::post(loop_, [self = shared_from_this()] {
      self->turn_posted_ = false;
      self->end_turn();
    });
  }
  if (options_.turn_ended) options_.turn_ended();
  // A wait of this turn may end before the next tick.
  if (!stopped_ && next < timer_ns_) set_timer(next);
}

void Server::Core::send_touched() {
  const std::vector<LinkPointer> touched = std::exchange(touched_, {});
  for (const LinkPointer& link : touched) {
    link->touched = false;
    if (!link->closed) send_some(link);
    if (link->closed || !may_go_on(*link)) continue;
    if (link->connection->has_more()) {
      receive(link, {});
    } else {
      wait_readable(link);
    }
  }
}

void Server::Core::send_some(const LinkPointer& link) {
  std::string& unsent = link->connection->unsent;
  while (!link->closed && !link->wanted.write && link->sent < unsent.size()) {
    const ssize_t count = send(link->fd, unsent.data() + link->sent, unsent.size() - link->sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      link->sent += static_cast<std::size_t>(count);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) return close(link, {});
    link->wanted.write = true;
    watch(link);
  }
  if (link->sent == unsent.size()) {
    // A large reply must not keep its memory for the life of the connection.
    if (unsent.capacity() > kReadBytes) unsent = {};
    unsent.clear();
    link->sent = 0;
  } else if (link->sent > unsent.size() / 2) {  // So each byte is moved once at most.
    unsent.erase(0, link->sent);
    link->sent = 0;
  }
  count_bytes(*link);
}

Result<void> Server::Core::keep_in(const std::string& directory) {
  wal_ = IVY_TRY(WalFile::open(directory, options_.job_id, engine_));
  if (!wal_->found().empty()) log("the log in " + directory + " holds " + wal_->found());
  store_.epoch = wal_->epoch();
  Replies none;
  if (!wal_->is_new() && engine_.generation() > options_.generation) {
    return Error{Code::kFailedPrecondition, "the log in " + directory + " is of generation " +
                                                std::to_string(engine_.generation()) +
                                                ", this store of " +
                                                std::to_string(options_.generation)};
  }
  // A new log must also record its generation.
  if (wal_->is_new() || engine_.generation() < options_.generation)
    engine_.begin_generation(options_.generation, none);
  disk_ready_ = std::make_unique<stream_descriptor>(loop_, dup(wal_->ready_fd()));
  wait_for_disk();
  end_turn();
  return {};
}

void Server::Core::wait_for_disk() {
  disk_ready_->async_wait(stream_descriptor::wait_read,
                          [self = shared_from_this()](const boost::system::error_code& error) {
                            if (error || self->stopped_) return;
                            self->on_disk();
                            if (!self->stopped_) self->wait_for_disk();
                          });
}

void Server::Core::on_disk() {
  const bool was_behind = disk_is_behind();
  const Result<void> committed = wal_->collect();
  if (!committed.ok()) return lose_log(committed.error());
  if (const std::string note = wal_->take_note(); !note.empty()) log(note);
  Replies released = held_.release(wal_->committed());
  hand_out(released);
  if (was_behind && !disk_is_behind()) {
    for (const LinkPointer& link : links_) settle(link);
  }
  end_turn();
}

// Ends the service: changes that are only in memory must not be seen any more.
void Server::Core::lose_log(const Error& error) {
  Replies failed = held_.fail(
      Error{error.code, error.message + ": whether the request was served is not known"});
  hand_out(failed);
  const std::vector<LinkPointer> all(links_.begin(), links_.end());
  for (const LinkPointer& link : all) {
    if (!link->closed) send_some(link);
  }
  stop();
  if (options_.log_lost) options_.log_lost(error.message);
}

void Server::Core::close(const LinkPointer& held, const std::string& because) {
  const LinkPointer link = held;  // `held` may be the list's own.
  if (link->closed) return;
  link->closed = true;
  if (!because.empty()) log("client " + link->address + " is disconnected: " + because);
  if (link->unauthenticated) unauthenticated_.erase(link->unauthenticated_place);
  link->unauthenticated = false;
  by_client_.erase(link->connection->client());
  for (const ClientId client : link->speaks_for) by_client_.erase(client);
  links_.erase(link->place);
  ::close(link->fd);
  link->connection = std::make_unique<ClosedConnection>();
  count_bytes(*link);
  torch_links_ -= link->dialect == Dialect::kTorch ? 1 : 0;
  closed_.push_back(link);
}

// Closes all pending connections, at most kMaxRefused, so that a stream of new ones cannot keep us
// here.
void Server::Core::refuse_backlog(Listener& listener) {
  for (std::size_t count = 0; count < kMaxRefused; ++count) {
    const int fd = accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    ::close(fd);
  }
}

void Server::Core::begin_generation(std::uint32_t generation) {
  Replies replies;
  front_.begin_generation(generation, replies);
  hand_out(replies);  // They depend on nothing on the disk.
  end_turn();
  std::vector<LinkPointer> former(links_.begin(), links_.end());
  for (const LinkPointer& link : former) close(link, {});
  // Connections that are not accepted yet belong to the generation before, too.
  for (Listener& listener : listeners_) refuse_backlog(listener);
  if (!former.empty()) {
    log(std::to_string(former.size()) + " clients of the generation before are disconnected");
  }
}

void Server::Core::stop_listening() {
  boost::system::error_code ignored;
  // Listeners stay in the list: the handler of a cancelled wait still uses its listener.
  for (Listener& listener : listeners_) {
    listener.paused = false;
    listener.socket.close(ignored);
  }
}

void Server::Core::stop() {
  stopped_ = true;
  timer_.cancel();
  boost::system::error_code ignored;
  ready_.cancel(ignored);
  if (disk_ready_ != nullptr) disk_ready_->close(ignored);
  for (Listener& listener : listeners_) listener.socket.close(ignored);
  const std::vector<LinkPointer> all(links_.begin(), links_.end());
  for (const LinkPointer& link : all) close(link, {});
}

void Server::Core::tick() {
  if (stopped_) return;
  const std::uint64_t now = steady_ns();
  timer_ns_ = kNever;
  closed_.clear();
  end_turn();
  while (!unauthenticated_.empty() &&
         now - unauthenticated_.front()->since_ns > options_.limits.handshake_ns) {
    close(*unauthenticated_.front()->place, "it has not proved itself in time");
  }
  for (Listener& listener : listeners_) {
    if (!std::exchange(listener.paused, false)) continue;
    take_clients(listener);
    if (!listener.paused) wait_for_clients(listener);
  }
  log_lines_left_ = kLogLinesPerTick;
  if (log_lines_dropped_ > 0) {
    log("and " + std::to_string(std::exchange(log_lines_dropped_, 0)) + " more such lines");
  }
  if (timer_ns_ == kNever) set_timer(kNever);
}

void Server::Core::set_timer(std::uint64_t next_ns) {
  const std::uint64_t now = steady_ns();
  std::chrono::nanoseconds wait = kTick;
  if (next_ns != kNever) {
    const auto due = std::chrono::nanoseconds(next_ns > now ? next_ns - now : 0);
    wait = std::min(wait, due);
  }
  timer_ns_ = now + static_cast<std::uint64_t>(wait.count());
  timer_.expires_after(wait);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->tick();
  });
}

void Server::Core::log(const std::string& text) {
  if (!options_.log) return;
  if (log_lines_left_ == 0) {
    ++log_lines_dropped_;
    return;
  }
  --log_lines_left_;
  options_.log(text);
}

std::optional<std::uint64_t> Server::Core::longest_wait_since_ns() const {
  std::optional<std::uint64_t> longest;
  for (const Waiting& waiting : engine_.picture().waiting)
    longest = std::min(longest.value_or(waiting.since_ns), waiting.since_ns);
  return longest;
}

Server::Server(boost::asio::io_context& loop, ServerOptions options)
    : core_(std::make_shared<Core>(loop, std::move(options))) {
  core_->start();
}

Server::~Server() { core_->stop(); }

Result<void> Server::keep_in(const std::string& directory) { return core_->keep_in(directory); }
void Server::listen(int listening_fd, Dialect dialect) { core_->listen(listening_fd, dialect); }
void Server::adopt(int fd, std::string_view arrived) { core_->adopt(fd, arrived); }
void Server::begin_generation(std::uint32_t generation) { core_->begin_generation(generation); }
std::string Server::why() const { return core_->why(); }
std::optional<std::uint64_t> Server::longest_wait_since_ns() const {
  return core_->longest_wait_since_ns();
}
std::uint64_t Server::last_progress_ns() const { return core_->last_progress_ns(); }
bool Server::anybody_waits() const { return core_->anybody_waits(); }
std::size_t Server::connection_count() const { return core_->connection_count(); }
std::uint64_t Server::request_count() const { return core_->request_count(); }
void Server::answer(Replies& replies) { core_->answer(replies); }
void Server::go_on() { core_->go_on(); }
void Server::stop_listening() { core_->stop_listening(); }
void Server::refuse_joins(std::string why) { core_->refuse_joins(std::move(why)); }
void Server::stop() { core_->stop(); }

std::size_t torch_bytes_for(std::size_t connections) {
  // A rank has four connections, so all ranks may read or write the longest value at once.
  constexpr std::size_t kEach = kMaxValueBytes / 4;
  constexpr std::size_t kLeast = kMaxTorchRequestBytes;
  constexpr std::size_t kMost = 1024 * kMaxValueBytes;
  return std::min(kMost, kLeast + std::min(connections, kMost / kEach) * kEach);
}

std::string address_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return text_of(storage, true);
}

}  // namespace ivy::store
