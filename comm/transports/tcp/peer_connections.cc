// SPDX-License-Identifier: Apache-2.0
// run() is the thread: it accepts connections (accept_some()) and advances their handshakes
// (advance_all(), challenge(), accept_proof()), then stores the connection for the mesh that asks
// for its channel. The dialling side (dial(), greet()) follows.
#include "comm/transports/tcp/peer_connections.h"

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
#include "comm/transports/tcp/tcp_streams.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/not_inherited.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"
#include "proto/os/socket_waits.h"
#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kNameBytes = 64;
constexpr std::size_t kChannelBytes = kNameBytes + 3 * 4;
constexpr int kSocketBuffer = 4 << 20;
constexpr milliseconds kProbeTime{200};
// The kernel of a stopped process still accepts connections, so silence means a firewall or a lost
// host.
constexpr milliseconds kConnectTime{10'000};
// How often handshakes are checked for timeouts.
constexpr milliseconds kGreetingStep{1'000};
// Pause after a failed accept(). Most likely no descriptor is free; the listener remains readable,
// so polling it would return immediately.
constexpr milliseconds kAcceptPause{100};
// How long a peer may be silent when kGreetingsMax handshakes are in progress. A rank sends its
// hello as soon as it is connected; one that was delayed for longer starts again (kSilentHangUps).
constexpr milliseconds kSilentTime{100};
constexpr int kSilentHangUps = 5;
constexpr milliseconds kHangUpPause{100};

// Returns an address in the form in which addresses are compared: without the scope, which each
// host names differently, and IPv4-mapped addresses as IPv4.
std::string plain_address(const std::string& host) {
  return host_text(parse_address(host.substr(0, host.find('%')), 0).storage);
}

Error not_numeric(const std::string& address) {
  return Error{Code::kUnavailable, "'" + address + "' is not a numeric address"};
}

// Tries kSocketBuffer: the limit (net.core.rmem_max) is not visible in every network namespace.
bool may_have_buffer(int option) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return false;
  int granted = 0;  // Twice the requested size, because the kernel counts its own records, too.
  socklen_t length = sizeof granted;
  setsockopt(socket.get(), SOL_SOCKET, option, &kSocketBuffer, sizeof kSocketBuffer);
  getsockopt(socket.get(), SOL_SOCKET, option, &granted, &length);
  return granted >= 2 * kSocketBuffer;
}

void set_options(int socket) {
  disable_nagle(socket);
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // The kernel does not grow a buffer whose size was set. If it grants less than kSocketBuffer, its
  // automatic growth reaches further, so no size is set.
  static const bool is_granted = may_have_buffer(SO_SNDBUF) && may_have_buffer(SO_RCVBUF);
  if (!is_granted) return;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
}

// Within one machine, no congestion control is needed, and pacing does not pay off (with BBR,
// transfers take up to twice the time). Use the plain algorithm, which every kernel has and allows.
void set_congestion(int socket) {
  constexpr std::string_view kPlain = "reno";
  if (!is_on_this_machine(socket)) return;
  setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

// Encodes the identity of this connection, which the dialler sends after its proof.
//   name of the communicator, 64 bytes, padded with NUL | u32 channel | u32 stream | u32 streams
std::string encode_channel(const PeerChannel& channel, std::uint32_t streams) {
  std::string bytes = channel.communicator.substr(0, kNameBytes - 1);
  bytes.resize(kNameBytes, '\0');
  store::put_u32(bytes, channel.channel);
  store::put_u32(bytes, channel.stream);
  store::put_u32(bytes, streams);
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
  store::PayloadReader numbers(bytes.substr(kNameBytes));
  channel.channel = numbers.u32();
  channel.stream = numbers.u32();
  announced.streams = numbers.u32();
  return announced;
}

}  // namespace

// An incoming connection whose handshake is incomplete: first the hello, then proof and channel.
struct PeerConnections::Greeting {
  int socket = -1;
  steady_clock::time_point end;
  std::string received;
  std::string hello;
  std::string challenge;
  std::uint32_t rank = 0;

  bool is_silent() const { return hello.empty() && received.empty(); }
  std::size_t wanted() const { return hello.empty() ? kHelloBytes : kProofBytes + kChannelBytes; }
};

PeerConnections::PeerConnections(int socket, Address address, PeerCredentials credentials,
                                 milliseconds greeting_time)
    : socket_(socket),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      address_(std::move(address.address)),
      scope_(address.scope),
      credentials_(std::move(credentials)),
      greeting_time_(greeting_time) {
  thread_ = background_thread([this] { run(); });
}

PeerConnections::~PeerConnections() {
  is_ending_.store(true);
  wake();
  thread_.join();
  for (const auto& [channel, connection] : arrived_) not_inherited::close(connection.socket);
  not_inherited::close(socket_);
}

Result<std::unique_ptr<PeerConnections>> PeerConnections::listen(const std::string& address,
                                                                 PeerCredentials credentials,
                                                                 milliseconds greeting_time) {
  SocketAddress where = parse_address(address, 0);
  if (!where.is_valid()) return not_numeric(address);
  const int socket = not_inherited::open([&] { return where.open_socket(); });
  if (socket < 0) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  set_options(socket);  // Before listen(), because accepted sockets inherit the buffers.
  if (bind(socket, where.get(), where.size) != 0 || ::listen(socket, 1024) != 0) {
    const int failed = errno;
    not_inherited::close(socket);
    return errno_error(Code::kUnavailable, "listen on " + address + " for other ranks", failed);
  }
  where = own_address(socket);
  // Without the scope, because another host names that interface differently.
  return std::unique_ptr<PeerConnections>(new PeerConnections(
      socket, {address_text(where.storage), where.scope()}, std::move(credentials), greeting_time));
}

void PeerConnections::accept_only_from(AddressesOfRanks addresses) {
  {
    const std::lock_guard lock(mutex_);
    addresses_of_ranks_ = std::move(addresses);
  }
  wake();
}

void PeerConnections::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof one));
}

bool PeerConnections::may_greet() {
  const std::lock_guard lock(mutex_);
  return !credentials_.waits_for_addresses || addresses_of_ranks_.has_value();
}

// Returns whether that rank connects from an expected address. Requires mutex_.
bool PeerConnections::is_in_place(int socket, std::uint32_t rank) const {
  if (!addresses_of_ranks_) return true;
  const SocketAddress from = peer_address(socket);
  if (!from.is_valid() || rank >= addresses_of_ranks_->size()) return false;
  const std::vector<std::string>& known = (*addresses_of_ranks_)[rank];
  const std::string address = host_text(from.storage);
  return std::any_of(known.begin(), known.end(),
                     [&](const std::string& each) { return plain_address(each) == address; });
}

// Advances a handshake. Returns false if it is finished: the connection was closed or passed on.
bool PeerConnections::advance(Greeting& greeting) {
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

// Handles a complete hello: challenges the dialler. Returns false if it does not belong to this
// job.
bool PeerConnections::challenge(Greeting& greeting) {
  const Result<HandshakeHello> hello = decode_hello(greeting.received);
  if (!hello.ok() || hello->purpose != "peer" || hello->job_id != credentials_.job_id ||
      hello->generation != credentials_.generation) {
    return false;
  }
  greeting.rank = hello->rank;
  greeting.hello = std::exchange(greeting.received, {});
  greeting.challenge = make_challenge(greeting.hello, credentials_.token, random_bytes(kNonceBytes),
                                      std::string(kEpochBytes, '\0'));
  // The buffer of a new socket takes these few bytes immediately.
  return send_all(greeting.socket, greeting.challenge, {steady_now()});
}

// Handles the proof and the channel after it. Returns whether the connection was passed on.
bool PeerConnections::accept_proof(const Greeting& greeting) {
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
  // A second connection for the same stream is the peer's mistake; keep the first one.
  if (!arrived_.emplace(announced.channel, connection).second) return false;
  has_arrived_.notify_all();
  return true;
}

// Reads received bytes of the handshakes, and closes those that timed out.
void PeerConnections::advance_all(std::vector<Greeting>& greetings,
                                  const std::vector<pollfd>& waiting) {
  const auto now = steady_now();
  std::vector<Greeting> kept;
  for (std::size_t i = 0; i < greetings.size(); ++i) {
    Greeting& greeting = greetings[i];
    const bool is_over = now >= greeting.end;
    // If this process was stopped, the rest may have arrived since poll() returned.
    if ((waiting[i + 2].revents != 0 || is_over) && !advance(greeting)) continue;
    if (is_over) {
      not_inherited::close(greeting.socket);
    } else {
      kept.push_back(std::move(greeting));
    }
  }
  greetings.swap(kept);
}

// Closes the handshakes that block others: those that have been silent for a while, and those so
// old that the dialler has given up (see dial_once).
void PeerConnections::make_room(std::vector<Greeting>& greetings) {
  const auto now = steady_now();
  std::vector<Greeting> kept;
  for (Greeting& greeting : greetings) {
    const auto age = now - (greeting.end - greeting_time_);
    const bool is_stale = age >= greeting_time_ / 2;
    // The peer may have sent something since poll() returned.
    if (age >= kSilentTime && greeting.is_silent() && !advance(greeting)) continue;
    if (is_stale || (age >= kSilentTime && greeting.is_silent())) {
      not_inherited::close(greeting.socket);
    } else {
      kept.push_back(std::move(greeting));
    }
  }
  greetings.swap(kept);
}

// Returns false if no connection can be accepted for now.
bool PeerConnections::accept_some(std::vector<Greeting>& greetings) {
  while (greetings.size() < kGreetingsMax) {
    const int socket = not_inherited::open(
        [&] { return accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (socket < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    set_options(socket);
    set_congestion(socket);
    Greeting greeting;
    greeting.socket = socket;
    greeting.end = steady_now() + greeting_time_;
    if (advance(greeting)) greetings.push_back(std::move(greeting));
  }
  return true;
}

void PeerConnections::run() {
  std::vector<Greeting> greetings;
  bool is_paused = false;  // accept() failed, so the listener is not polled.
  while (!is_ending_.load()) {
    const bool is_full = greetings.size() >= kGreetingsMax;
    const bool may_accept = may_greet();
    std::vector<pollfd> waiting = {{wake_.get(), POLLIN, 0}, {socket_, POLLIN, 0}};
    if (is_full || is_paused || !may_accept) waiting[1].fd = -1;
    for (const Greeting& greeting : greetings) waiting.push_back({greeting.socket, POLLIN, 0});
    milliseconds step = std::min(is_full ? kSilentTime : kGreetingStep, greeting_time_);
    if (is_paused) step = std::min(step, kAcceptPause);
    const bool has_end = is_paused || !greetings.empty();
    poll(waiting.data(), waiting.size(), has_end ? static_cast<int>(step.count()) : -1);
    std::uint64_t ignored = 0;
    static_cast<void>(!read(wake_.get(), &ignored, sizeof ignored));
    advance_all(greetings, waiting);
    if (greetings.size() >= kGreetingsMax) make_room(greetings);
    if (may_accept) is_paused = !accept_some(greetings);
  }
  for (const Greeting& greeting : greetings) not_inherited::close(greeting.socket);
}

// A connection that is being made.
struct PeerConnections::Dial {
  const std::string& address;
  const PeerChannel& channel;
  std::uint32_t streams;
  WaitLimit limit;

  Error failed(const std::string& why, Code code = Code::kUnavailable) const {
    return Error{
        limit.is_cancelled() ? Code::kCancelled : code,
        "connect to rank " + std::to_string(channel.peer_rank) + " at " + address + ": " + why};
  }

  Result<void> connect(int socket, SocketAddress& where) const {
    set_options(socket);
    WaitLimit connecting = limit;
    connecting.end = std::min(connecting.end, steady_now() + kConnectTime);
    const int error = connect_to(socket, where, connecting);
    if (error != 0) return failed(error == ETIMEDOUT ? "no answer" : strerror(error));
    set_congestion(socket);
    return {};
  }
};

Result<PeerSocket> PeerConnections::dial(const std::string& address, const PeerChannel& channel,
                                         std::uint32_t streams, milliseconds at_most,
                                         const std::function<bool()>& may_continue) {
  const Dial dial = {address, channel, streams, {steady_now() + at_most, &may_continue}};
  int quick_hang_ups = 0;
  while (true) {
    const auto begun = steady_now();
    Result<PeerSocket> dialled = dial_once(dial);
    if (dialled.ok() || dialled.error().code != Code::kAborted) return dialled;
    // If one side was stopped during the handshake, the other side has given up, sooner if many
    // handshakes are in progress.
    if (steady_now() - begun >= greeting_time_ / 2) continue;
    if (++quick_hang_ups == kSilentHangUps) return dialled;
    if (!pause_for(kHangUpPause * quick_hang_ups, dial.limit)) return dialled;
  }
}

// Fails with Aborted if the peer hung up before it sent its challenge, or may do so before it
// receives the proof.
Result<PeerSocket> PeerConnections::dial_once(const Dial& dial) {
  const auto begun = steady_now();
  SocketAddress where = parse_with_port(dial.address);
  if (!where.is_valid()) return not_numeric(dial.address);
  if (where.scope() == 0) where.set_scope(scope_);
  const int socket = not_inherited::open([&] { return where.open_socket(); });
  if (socket < 0) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  Result<void> made = dial.connect(socket, where);
  // The peer's time for the handshake does not start before `begun`.
  if (made.ok()) made = greet(socket, dial, begun + greeting_time_ / 2);
  if (made.ok()) return PeerSocket{socket, dial.streams};
  not_inherited::close(socket);
  return made.error();
}

Result<void> PeerConnections::greet(int socket, const Dial& dial, steady_clock::time_point latest) {
  HandshakeHello hello;
  hello.purpose = "peer";
  hello.job_id = credentials_.job_id;
  hello.generation = credentials_.generation;
  hello.rank = credentials_.rank;
  hello.pid = static_cast<std::uint32_t>(getpid());
  hello.nonce = random_bytes(kNonceBytes);
  const std::string hello_bytes = encode_hello(hello);
  std::string challenge;
  if (!send_all(socket, hello_bytes, dial.limit) ||
      !receive_all(socket, challenge, kChallengeBytes, dial.limit)) {
    if (steady_now() >= dial.limit.end) return dial.failed("it did not answer the handshake");
    return dial.failed("it closed the connection during the handshake", Code::kAborted);
  }
  if (!check_challenge(hello_bytes, challenge, credentials_.token).ok()) {
    return dial.failed("it does not know the job's token");
  }
  // The peer does not answer the proof. If the proof were late, this side would keep a connection
  // that the other has closed.
  if (steady_now() >= latest) return dial.failed("its handshake arrived too late", Code::kAborted);
  const std::string proof = make_proof(hello_bytes, challenge, credentials_.token);
  if (!send_all(socket, proof + encode_channel(dial.channel, dial.streams), dial.limit)) {
    return dial.failed("it closed the connection");
  }
  return {};
}

std::string PeerConnections::host() const { return host_of(address_); }

bool PeerConnections::is_near(const std::string& address) const {
  return host_of(address) == host_of(address_);
}

bool PeerConnections::is_listening(const std::string& address) { return is_listening(address, 0); }

bool PeerConnections::is_peer_listening(const std::string& address) const {
  return is_listening(address, scope_);
}

bool PeerConnections::is_listening(const std::string& address, std::uint32_t scope) {
  SocketAddress where = parse_with_port(address);
  if (!where.is_valid()) return true;
  if (where.scope() == 0) where.set_scope(scope);
  const Descriptor socket(where.open_socket());
  return !socket || connect_to(socket.get(), where, {steady_now() + kProbeTime}) != ECONNREFUSED;
}

PeerSocket PeerConnections::take(const PeerChannel& channel, milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const auto is_present = [&] { return arrived_.count(channel) != 0; };
  if (!has_arrived_.wait_for(lock, at_most, is_present)) return {};
  const auto found = arrived_.find(channel);
  const PeerSocket connection = found->second;
  arrived_.erase(found);
  return connection;
}

void PeerConnections::forget(const std::string& communicator) {
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

}  // namespace ivy::comm
