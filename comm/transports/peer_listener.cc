#include "comm/transports/peer_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/transports/tcp_streams.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/not_inherited.h"
#include "proto/os/socket_options.h"
#include "proto/wire/handshake.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kNameBytes = 64;
constexpr std::size_t kChannelBytes = kNameBytes + 3 * 4;
constexpr int kSocketBuffer = 4 << 20;
constexpr milliseconds kProbeTime{200};
// A process that is stopped has a kernel that answers: silence is a firewall or a lost host.
constexpr milliseconds kConnectTime{10'000};
// How often greetings are checked for timeouts.
constexpr milliseconds kGreetingStep{1'000};
// How long a peer may be silent when kGreetingsMax are under way: a rank speaks as soon as it is
// connected. One that was kept from it for longer begins anew (kSilentHangUps).
constexpr milliseconds kSilentTime{100};
constexpr int kSilentHangUps = 5;
constexpr milliseconds kHangUpPause{100};
// How often `may_go_on` is asked.
constexpr milliseconds kAskPause{5};

struct PeerAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  sockaddr_in6& v6() { return reinterpret_cast<sockaddr_in6&>(storage); }
};

std::pair<std::string, std::string> split_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return {host, colon == std::string::npos ? "" : text.substr(colon + 1)};
}

// An address in the form in which it is compared: without the scope, which each host names for
// itself, and IPv4 in IPv6 as IPv4.
std::string plain_address(const std::string& host) {
  constexpr std::string_view kMapped = "::ffff:";
  const std::string plain = host.substr(0, host.find('%'));
  const bool is_mapped = plain.starts_with(kMapped) && plain.find('.') != std::string::npos;
  return is_mapped ? plain.substr(kMapped.size()) : plain;
}

Result<PeerAddress> numeric_address(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    return Error{Code::kUnavailable, "find address " + host + ": " + gai_strerror(failed)};
  }
  PeerAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

bool is_link_local(PeerAddress& where) {
  return where.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&where.v6().sin6_addr);
}

std::uint32_t scope_of(PeerAddress& where) {
  return is_link_local(where) ? where.v6().sin6_scope_id : 0;
}

void set_scope(PeerAddress& where, std::uint32_t scope) {
  if (is_link_local(where)) where.v6().sin6_scope_id = scope;
}

int make_socket(const PeerAddress& where) {
  return not_inherited::open([&] {
    return ::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  });
}

std::string address_text(const PeerAddress& address) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.length, host,
              sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string name = host;
  return (name.find(':') != std::string::npos ? "[" + name + "]" : name) + ":" + port;
}

// Tries it out, because the limit (net.core.rmem_max) is not shown in every network namespace.
bool may_have_buffer(int option) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return false;
  int granted = 0;  // Twice what was asked for: the kernel counts its own records too.
  socklen_t length = sizeof granted;
  setsockopt(socket.get(), SOL_SOCKET, option, &kSocketBuffer, sizeof kSocketBuffer);
  getsockopt(socket.get(), SOL_SOCKET, option, &granted, &length);
  return granted >= 2 * kSocketBuffer;
}

void set_options(int socket) {
  send_at_once(socket);
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // A size that was asked for stays; where the kernel grants less than that, its own growth goes
  // further.
  static const bool is_granted = may_have_buffer(SO_SNDBUF) && may_have_buffer(SO_RCVBUF);
  if (!is_granted) return;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
}

// Within one machine there is no network to be careful with, and no pacing that would pay (BBR's
// takes up to twice the time): the plain algorithm, which every kernel has and allows.
void set_congestion(int socket) {
  constexpr std::string_view kPlain = "reno";
  if (!is_on_this_machine(socket)) return;
  setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

// How long a wait at a socket may take, and what calls it off.
struct Patience {
  steady_clock::time_point end;
  const std::function<bool()>* may_go_on = nullptr;  // Null: it cannot be called off.

  bool is_called_off() const { return may_go_on != nullptr && !(*may_go_on)(); }
};

// Waits until the socket is ready for `events`. False: too late, or called off.
bool wait_for(int socket, short events, const Patience& patience) {
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(patience.end - steady_now()).count();
    if (left <= 0 || patience.is_called_off()) return false;
    const auto slice = patience.may_go_on != nullptr ? kAskPause.count() : 60'000;
    pollfd waiting = {socket, events, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left, slice)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Waits before the next attempt. False: the dial has been called off.
bool pause_for(milliseconds time, const Patience& patience) {
  const auto end = std::min(patience.end, steady_now() + time);
  while (steady_now() < end) {
    if (patience.is_called_off()) return false;
    poll(nullptr, 0, static_cast<int>(kAskPause.count()));
  }
  return steady_now() < patience.end;
}

bool write_all(int socket, std::string_view bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, patience)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool read_all(int socket, std::string& bytes, std::size_t count, const Patience& patience) {
  bytes.resize(count);
  std::size_t have = 0;
  while (have < count) {
    const ssize_t got = recv(socket, bytes.data() + have, count - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return false;
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLIN, patience)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// What the dialler says behind its proof: which connection this is to be.
//   name of the communicator, 64 bytes, padded with NUL | u32 channel | u32 stream | u32 streams
void append_number(std::string& bytes, std::uint32_t number) {
  for (std::size_t i = 0; i < 4; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
}

std::uint32_t number_at(std::string_view bytes, std::size_t place) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    number |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[place + i])) << (8 * i);
  }
  return number;
}

std::string encode_channel(const PeerChannel& channel, std::uint32_t streams) {
  std::string bytes = channel.communicator.substr(0, kNameBytes - 1);
  bytes.resize(kNameBytes, '\0');
  append_number(bytes, channel.channel);
  append_number(bytes, channel.stream);
  append_number(bytes, streams);
  return bytes;
}

struct Announced {
  PeerChannel channel;
  std::uint32_t streams = 1;
  bool is_possible() const {
    return streams >= 1 && streams <= kStreamsMax && channel.stream < streams;
  }
};

Announced decode_channel(std::string_view bytes, std::uint32_t peer_rank) {
  Announced announced;
  PeerChannel& channel = announced.channel;
  channel.peer_rank = peer_rank;
  channel.communicator = std::string(bytes.data(), strnlen(bytes.data(), kNameBytes));
  channel.channel = number_at(bytes, kNameBytes);
  channel.stream = number_at(bytes, kNameBytes + 4);
  announced.streams = number_at(bytes, kNameBytes + 8);
  return announced;
}

}  // namespace

// An incoming connection that has not shown all yet: first the hello, then proof and channel.
struct PeerListener::Greeting {
  int socket = -1;
  steady_clock::time_point end;
  std::string received;
  std::string hello;
  std::string challenge;
  std::uint32_t rank = 0;

  bool is_silent() const { return hello.empty() && received.empty(); }
  std::size_t wanted() const { return hello.empty() ? kHelloBytes : kProofBytes + kChannelBytes; }
};

PeerListener::PeerListener(int socket, Place place, PeerCredentials credentials,
                           milliseconds greeting_time)
    : socket_(socket),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      address_(std::move(place.address)),
      scope_(place.scope),
      credentials_(std::move(credentials)),
      greeting_time_(greeting_time) {
  thread_ = background_thread([this] { run(); });
}

PeerListener::~PeerListener() {
  is_ending_.store(true);
  wake();
  thread_.join();
  for (const auto& [channel, connection] : arrived_) not_inherited::close(connection.socket);
  not_inherited::close(socket_);
}

Result<std::unique_ptr<PeerListener>> PeerListener::listen(const std::string& address,
                                                           PeerCredentials credentials,
                                                           milliseconds greeting_time) {
  PeerAddress where = IVY_TRY(numeric_address(address, "0"));
  const int socket = make_socket(where);
  if (socket < 0) return errno_error(Code::kResourceExhausted, "make a socket", errno);
  set_options(socket);  // Buffers are inherited by what is accepted, and must be set before.
  if (bind(socket, where.get(), where.length) != 0 || ::listen(socket, 1024) != 0) {
    const int failed = errno;
    not_inherited::close(socket);
    return errno_error(Code::kUnavailable, "listen on " + address + " for other ranks", failed);
  }
  where.length = sizeof where.storage;
  getsockname(socket, where.get(), &where.length);
  const std::uint32_t scope = scope_of(where);
  set_scope(where, 0);  // Another host names that interface differently.
  return std::unique_ptr<PeerListener>(new PeerListener(socket, {address_text(where), scope},
                                                        std::move(credentials), greeting_time));
}

void PeerListener::expect(PlacesOfRanks places) {
  {
    const std::lock_guard lock(mutex_);
    places_ = std::move(places);
  }
  wake();
}

void PeerListener::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof one));
}

bool PeerListener::may_greet() {
  const std::lock_guard lock(mutex_);
  return !credentials_.waits_for_places || places_.has_value();
}

// True if that rank connects from a host where it may be. Called under mutex_.
bool PeerListener::is_in_place(int socket, std::uint32_t rank) const {
  if (!places_) return true;
  PeerAddress from;
  from.length = sizeof from.storage;
  if (getpeername(socket, from.get(), &from.length) != 0 || rank >= places_->size()) return false;
  const std::vector<std::string>& known = (*places_)[rank];
  const std::string address = plain_address(split_address(address_text(from)).first);
  return std::any_of(known.begin(), known.end(),
                     [&](const std::string& each) { return plain_address(each) == address; });
}

// Advances a greeting. False: it is finished (the connection is closed, or handed on).
bool PeerListener::advance(Greeting& greeting) {
  while (true) {
    const std::size_t missing = greeting.wanted() - greeting.received.size();
    char bytes[512];
    const ssize_t got = recv(greeting.socket, bytes, std::min(missing, sizeof bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) break;
    greeting.received.append(bytes, static_cast<std::size_t>(got));
    if (greeting.hello.empty() && !check_hello_begin(greeting.received).ok()) break;
    if (greeting.received.size() < greeting.wanted()) continue;
    if (greeting.hello.empty()) {
      if (!challenge(greeting)) break;
    } else if (accept_proof(greeting)) {
      return false;
    } else {
      break;
    }
  }
  not_inherited::close(greeting.socket);
  return false;
}

// The hello is here: challenges the dialler. False: it does not belong to this job.
bool PeerListener::challenge(Greeting& greeting) {
  const Result<HandshakeHello> hello = decode_hello(greeting.received);
  if (!hello.ok() || hello->purpose != "peer" || hello->job_id != credentials_.job_id ||
      hello->generation != credentials_.generation) {
    return false;
  }
  greeting.rank = hello->rank;
  greeting.hello = std::exchange(greeting.received, {});
  greeting.challenge = make_challenge(greeting.hello, credentials_.token, random_bytes(kNonceBytes),
                                      std::string(kEpochBytes, '\0'));
  // The buffer of a fresh socket takes these few bytes at once.
  return write_all(greeting.socket, greeting.challenge, {steady_now()});
}

// The proof is here, with the channel behind it. True: the connection has been handed on.
bool PeerListener::accept_proof(const Greeting& greeting) {
  const std::string_view all = greeting.received;
  if (!check_proof(greeting.hello, greeting.challenge, all.substr(0, kProofBytes),
                   credentials_.token)
           .ok()) {
    return false;
  }
  const Announced announced = decode_channel(all.substr(kProofBytes), greeting.rank);
  if (!announced.is_possible()) return false;
  const PeerSocket connection = {greeting.socket, announced.streams};
  const std::lock_guard lock(mutex_);
  if (!is_in_place(greeting.socket, greeting.rank)) return false;
  // A second connection for the same stream would be a peer's mistake: the first one stays.
  if (!arrived_.emplace(announced.channel, connection).second) return false;
  has_arrived_.notify_all();
  return true;
}

// Reads what has arrived for the greetings, and closes those that timed out.
void PeerListener::advance_all(std::vector<Greeting>& greetings,
                               const std::vector<pollfd>& waiting) {
  const auto now = steady_now();
  std::vector<Greeting> kept;
  for (std::size_t i = 0; i < greetings.size(); ++i) {
    Greeting& greeting = greetings[i];
    const bool is_over = now >= greeting.end;
    // If this process was stopped, the rest may have come since poll() returned.
    if ((waiting[i + 2].revents != 0 || is_over) && !advance(greeting)) continue;
    if (is_over) {
      not_inherited::close(greeting.socket);
    } else {
      kept.push_back(std::move(greeting));
    }
  }
  greetings.swap(kept);
}

// Closes the greetings that keep others out: those that have been silent for a while, and those so
// old that the dialler has given up (see dial_once). The rest goes on.
void PeerListener::make_room(std::vector<Greeting>& greetings) {
  const auto now = steady_now();
  std::vector<Greeting> kept;
  for (Greeting& greeting : greetings) {
    const auto age = now - (greeting.end - greeting_time_);
    const bool is_stale = age >= greeting_time_ / 2;
    // The peer may have spoken since poll() returned.
    if (age >= kSilentTime && greeting.is_silent() && !advance(greeting)) continue;
    if (is_stale || (age >= kSilentTime && greeting.is_silent())) {
      not_inherited::close(greeting.socket);
    } else {
      kept.push_back(std::move(greeting));
    }
  }
  greetings.swap(kept);
}

void PeerListener::accept_some(std::vector<Greeting>& greetings) {
  while (greetings.size() < kGreetingsMax) {
    const int socket = not_inherited::open(
        [&] { return accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (socket < 0) return;
    set_options(socket);
    set_congestion(socket);
    Greeting greeting;
    greeting.socket = socket;
    greeting.end = steady_now() + greeting_time_;
    if (advance(greeting)) greetings.push_back(std::move(greeting));
  }
}

void PeerListener::run() {
  std::vector<Greeting> greetings;
  while (!is_ending_.load()) {
    const bool is_full = greetings.size() >= kGreetingsMax;
    const bool may_accept = may_greet();
    std::vector<pollfd> waiting = {{wake_.get(), POLLIN, 0}, {socket_, POLLIN, 0}};
    if (is_full || !may_accept) waiting[1].fd = -1;
    for (const Greeting& greeting : greetings) waiting.push_back({greeting.socket, POLLIN, 0});
    const auto step = std::min(is_full ? kSilentTime : kGreetingStep, greeting_time_).count();
    poll(waiting.data(), waiting.size(), greetings.empty() ? -1 : static_cast<int>(step));
    std::uint64_t ignored = 0;
    static_cast<void>(!read(wake_.get(), &ignored, sizeof ignored));
    advance_all(greetings, waiting);
    if (greetings.size() >= kGreetingsMax) make_room(greetings);
    if (may_accept) accept_some(greetings);
  }
  for (const Greeting& greeting : greetings) not_inherited::close(greeting.socket);
}

// One connection that is being made.
struct PeerListener::Dial {
  const std::string& address;
  const PeerChannel& channel;
  std::uint32_t streams;
  Patience patience;

  Error failed(const std::string& why, Code code = Code::kUnavailable) const {
    return Error{
        patience.is_called_off() ? Code::kCancelled : code,
        "connect to rank " + std::to_string(channel.peer_rank) + " at " + address + ": " + why};
  }

  Result<void> connect_to(int socket, PeerAddress& where) const {
    set_options(socket);
    if (connect(socket, where.get(), where.length) != 0 && errno != EINPROGRESS) {
      return this->failed(strerror(errno));
    }
    Patience connecting = patience;
    connecting.end = std::min(connecting.end, steady_now() + kConnectTime);
    if (!wait_for(socket, POLLOUT, connecting)) return this->failed("no answer");
    int failed = 0;
    socklen_t length = sizeof failed;
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &failed, &length);
    if (failed != 0) return this->failed(strerror(failed));
    set_congestion(socket);
    return {};
  }
};

Result<PeerSocket> PeerListener::dial(const std::string& address, const PeerChannel& channel,
                                      std::uint32_t streams, milliseconds at_most,
                                      const std::function<bool()>& may_go_on) {
  const Dial dial = {address, channel, streams, {steady_now() + at_most, &may_go_on}};
  int quick_hang_ups = 0;
  while (true) {
    const auto begun = steady_now();
    Result<PeerSocket> dialled = dial_once(dial);
    if (dialled.ok() || dialled.error().code != Code::kAborted) return dialled;
    // If one of the two was stopped in the middle of the greeting, the other one gave it up, sooner
    // if many are greeted.
    if (steady_now() - begun >= greeting_time_ / 2) continue;
    if (++quick_hang_ups == kSilentHangUps) return dialled;
    if (!pause_for(kHangUpPause * quick_hang_ups, dial.patience)) return dialled;
  }
}

// Aborted: the peer hung up before it had greeted, or may do so before it sees the proof.
Result<PeerSocket> PeerListener::dial_once(const Dial& dial) {
  const auto begun = steady_now();
  const auto [host, port] = split_address(dial.address);
  PeerAddress where = IVY_TRY(numeric_address(host, port));
  if (scope_of(where) == 0) set_scope(where, scope_);
  const int socket = make_socket(where);
  if (socket < 0) return errno_error(Code::kResourceExhausted, "make a socket", errno);
  Result<void> made = dial.connect_to(socket, where);
  // The peer greets within its own time, which has begun no later than this one's.
  if (made.ok()) made = greet(socket, dial, begun + greeting_time_ / 2);
  if (made.ok()) return PeerSocket{socket, dial.streams};
  not_inherited::close(socket);
  return made.error();
}

Result<void> PeerListener::greet(int socket, const Dial& dial, steady_clock::time_point latest) {
  HandshakeHello hello;
  hello.purpose = "peer";
  hello.job_id = credentials_.job_id;
  hello.generation = credentials_.generation;
  hello.rank = credentials_.rank;
  hello.pid = static_cast<std::uint32_t>(getpid());
  hello.nonce = random_bytes(kNonceBytes);
  const std::string hello_bytes = encode_hello(hello);
  std::string challenge;
  if (!write_all(socket, hello_bytes, dial.patience) ||
      !read_all(socket, challenge, kChallengeBytes, dial.patience)) {
    if (steady_now() >= dial.patience.end) return dial.failed("it did not greet");
    return dial.failed("it hung up on the greeting", Code::kAborted);
  }
  if (!check_challenge(hello_bytes, challenge, credentials_.token).ok()) {
    return dial.failed("it does not know the job's token");
  }
  // The peer does not answer the proof: if it came too late, this side would keep a connection that
  // the other has closed.
  if (steady_now() >= latest) return dial.failed("its greeting came late", Code::kAborted);
  const std::string proof = make_proof(hello_bytes, challenge, credentials_.token);
  if (!write_all(socket, proof + encode_channel(dial.channel, dial.streams), dial.patience)) {
    return dial.failed("it hung up");
  }
  return {};
}

std::string PeerListener::host() const { return split_address(address_).first; }

bool PeerListener::is_near(const std::string& address) const {
  return split_address(address).first == split_address(address_).first;
}

bool PeerListener::is_there(const std::string& address) { return is_there(address, 0); }

bool PeerListener::is_peer_there(const std::string& address) const {
  return is_there(address, scope_);
}

bool PeerListener::is_there(const std::string& address, std::uint32_t scope) {
  const auto [host, port] = split_address(address);
  Result<PeerAddress> where = numeric_address(host, port);
  if (!where.ok()) return true;
  if (scope_of(*where) == 0) set_scope(*where, scope);
  const Descriptor socket(
      ::socket(where->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return true;
  int failed = connect(socket.get(), where->get(), where->length) == 0 ? 0 : errno;
  if (failed == EINPROGRESS && wait_for(socket.get(), POLLOUT, {steady_now() + kProbeTime})) {
    socklen_t length = sizeof failed;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length);
  }
  return failed != ECONNREFUSED;
}

PeerSocket PeerListener::take(const PeerChannel& channel, milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const auto is_here = [&] { return arrived_.count(channel) != 0; };
  if (!has_arrived_.wait_for(lock, at_most, is_here)) return {};
  const auto found = arrived_.find(channel);
  const PeerSocket connection = found->second;
  arrived_.erase(found);
  return connection;
}

void PeerListener::forget(const std::string& communicator) {
  const std::lock_guard lock(mutex_);
  for (auto entry = arrived_.begin(); entry != arrived_.end();) {
    if (entry->first.communicator != communicator) {
      ++entry;
      continue;
    }
    not_inherited::close(entry->second.socket);
    entry = arrived_.erase(entry);
  }
}

Result<std::string> own_address_towards(const std::string& address) {
  const auto [host, port] = split_address(address);
  PeerAddress where = IVY_TRY(numeric_address(host, port));
  // Connecting a datagram socket sends nothing; it only asks the routing table.
  const Descriptor socket(::socket(where.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno_error(Code::kResourceExhausted, "make a socket", errno);
  PeerAddress own;
  own.length = sizeof own.storage;
  const bool is_known = connect(socket.get(), where.get(), where.length) == 0 &&
                        getsockname(socket.get(), own.get(), &own.length) == 0;
  if (!is_known) return errno_error(Code::kUnavailable, "find the way to " + address, errno);
  return split_address(address_text(own)).first;
}

}  // namespace ivy::comm
