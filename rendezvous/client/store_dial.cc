// SPDX-License-Identifier: Apache-2.0
// Attempt is one connection with its handshake, from hello to welcome. dial_until() repeats
// attempts with growing pauses until the deadline. wait_ready() is the wait of the whole client,
// which can be woken through an eventfd.
#include "rendezvous/client/store_dial.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/not_inherited.h"
#include "proto/os/socket_options.h"
#include "proto/os/socket_waits.h"
#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {
namespace {

constexpr std::uint64_t kFirstPauseNs = 20'000'000;
constexpr std::uint64_t kLongestPauseNs = 1'000'000'000;
// A full store also closes connections, so one close proves little; this many mean a rejection.
constexpr int kHangUps = 5;

// One attempt to connect to the store and to perform the handshake.
class Attempt {
 public:
  Attempt(const DialTarget& target, std::uint64_t deadline_ns, Interrupt interrupt)
      : target_(target),
        deadline_ns_(deadline_ns),
        interrupt_(interrupt),
        socket_(not_inherited::open([&] { return target.address.open_socket(); })) {}

  // Fails with Aborted if the store closes the connection during the handshake.
  Result<Dialled> run() {
    IVY_CHECK(connect());
    const std::string hello = hello_bytes();
    IVY_CHECK(send_all(hello));
    const std::string challenge = IVY_TRY(receive(kChallengeBytes));
    HandshakeChallenge checked = IVY_TRY(check_challenge(hello, challenge, target_.token));
    IVY_CHECK(send_all(make_proof(hello, challenge, target_.token)));
    WireDecoder decoder(kMaxFrameBytes);
    IVY_CHECK(take_welcome(decoder));
    return Dialled{std::move(socket_), std::move(checked.epoch), std::move(decoder)};
  }

 private:
  Result<short> wait(short events) {
    return wait_ready(socket_.get(), events, deadline_ns_, interrupt_);
  }

  Result<void> connect() {
    if (socket_.get() < 0) return errno_error(Code::kInternal, "open a socket", errno);
    disable_nagle(socket_.get());
    keep_alive(socket_.get(), kKeepAlive);
    const auto* address = reinterpret_cast<const sockaddr*>(&target_.address.storage);
    if (::connect(socket_.get(), address, target_.address.size) == 0) return {};
    if (errno != EINPROGRESS) return errno_error(Code::kUnavailable, "connect", errno);
    if (IVY_TRY(wait(POLLOUT)) == 0) return Error{Code::kUnavailable, "connect: no response"};
    const int error = error_of(socket_.get());
    if (error != 0) return errno_error(Code::kUnavailable, "connect", error);
    return {};
  }

  std::string hello_bytes() const {
    HandshakeHello hello;
    hello.purpose = "store";
    hello.job_id = target_.job_id;
    hello.generation = target_.generation;
    hello.rank = target_.rank.value_or(kNoRank);
    hello.pid = static_cast<std::uint32_t>(getpid());
    hello.session = target_.session;
    hello.nonce = random_bytes(kNonceBytes);
    return encode_hello(hello);
  }

  Error hung_up() const {
    return Error{Code::kAborted,
                 "it closed the connection during the handshake: it serves another job or uses "
                 "another protocol version"};
  }

  Result<void> send_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return hung_up();
      if (IVY_TRY(wait(POLLOUT)) == 0) return silence();
    }
    return {};
  }

  static Error silence() { return Error{Code::kUnavailable, "no answer during the handshake"}; }

  Result<std::string> receive(std::size_t exactly) {
    std::string bytes(exactly, '\0');
    std::size_t have = 0;
    while (have < exactly) have += IVY_TRY(receive_some(bytes.data() + have, exactly - have));
    return bytes;
  }

  Result<std::size_t> receive_some(char* to, std::size_t max_bytes) {
    while (true) {
      const ssize_t count = recv(socket_.get(), to, max_bytes, 0);
      if (count > 0) return static_cast<std::size_t>(count);
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) return hung_up();
      if (errno == EAGAIN && IVY_TRY(wait(POLLIN)) == 0) return silence();
    }
  }

  Result<void> take_welcome(WireDecoder& decoder) {
    std::array<char, 4096> buffer{};
    while (true) {
      const std::optional<WireFrame> frame = IVY_TRY(decoder.next());
      if (!frame) {
        const std::size_t count = IVY_TRY(receive_some(buffer.data(), buffer.size()));
        decoder.feed({buffer.data(), count});
        continue;
      }
      if (frame->head.id != 0)
        return Error{Code::kDataLoss, "it replied before the end of the handshake"};
      if (frame->head.kind == 0) return {};
      PayloadReader in(frame->payload);
      const std::string text(in.text());
      const bool is_complete = frame->head.kind == static_cast<std::uint8_t>(Code::kAlreadyExists);
      return Error{is_complete ? Code::kAlreadyExists : Code::kFailedPrecondition,
                   text.empty() ? "rejected without a reason" : text};
    }
  }

  const DialTarget& target_;
  const std::uint64_t deadline_ns_;
  const Interrupt interrupt_;
  Descriptor socket_;
};

}  // namespace

Result<void> parse_target(const std::string& text, DialTarget& target) {
  constexpr std::string_view kUnix = "unix:";
  target.text = text;
  if (text.starts_with(kUnix) && text != kUnix)
    target.address = unix_address(std::string_view(text).substr(kUnix.size()));
  // Names are not resolved, and an IPv6 address needs brackets.
  const bool is_numeric =
      text.starts_with('[') || (text.find_first_not_of("0123456789.:") == std::string::npos &&
                                text.find(':') == text.rfind(':'));
  if (is_numeric && !text.ends_with(":0")) target.address = parse_with_port(text);
  if (target.address.is_valid()) return {};
  return Error{
      Code::kInvalidArgument,
      "'" + text + "' is not an address such as 10.0.0.1:4123, [fd00::1]:4123 or unix:/path"};
}

Result<short> wait_ready(int descriptor, short events, std::uint64_t deadline_ns,
                         Interrupt interrupt) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  while (true) {
    if (*interrupt.cancelled) return Error{Code::kCancelled, "cancelled"};
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t left_ns =
        deadline_ns > now_ns ? std::min(deadline_ns - now_ns, 3600 * kSecond) : 0;
    const timespec pause{static_cast<time_t>(left_ns / kSecond),
                         static_cast<long>(left_ns % kSecond)};
    std::array<pollfd, 2> polled = {{{descriptor, events, 0}, {interrupt.descriptor, POLLIN, 0}}};
    const int count = ppoll(polled.data(), polled.size(), &pause, nullptr);
    if (count < 0 && errno != EINTR) return errno_error(Code::kInternal, "poll", errno);
    if (count > 0 && polled[1].revents != 0) {
      std::uint64_t ignored = 0;
      const bool woken = read(interrupt.descriptor, &ignored, sizeof ignored) > 0;
      if (woken && !interrupt.by_any) continue;
      if (woken && polled[0].revents == 0) return short{0};
    }
    if (count > 0 && polled[0].revents != 0) return polled[0].revents;
    if (now_ns >= deadline_ns) return short{0};
  }
}

Result<Dialled> dial_until(const DialTarget& target, std::uint64_t deadline_ns,
                           Interrupt interrupt) {
  std::uint64_t pause_ns = kFirstPauseNs;
  int hang_ups = 0;
  while (true) {
    Result<Dialled> made = Attempt(target, deadline_ns, interrupt).run();
    if (made.ok()) return made;
    const Error error = made.error().context("store at " + target.text);
    const bool hung_up = error.code == Code::kAborted;
    if (hung_up && ++hang_ups == kHangUps) return Error{Code::kUnauthenticated, error.message};
    if (!hung_up && error.code != Code::kUnavailable) return error;
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns + pause_ns >= deadline_ns) return Error{Code::kUnavailable, error.message};
    // Add jitter, so that clients do not all dial at the same moment.
    const std::uint64_t jitter_ns = static_cast<unsigned char>(random_bytes(1)[0]) * pause_ns / 512;
    IVY_CHECK(wait_ready(-1, 0, now_ns + pause_ns / 2 + jitter_ns, interrupt));
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
  }
}

}  // namespace ivy::store
