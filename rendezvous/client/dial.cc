#include "rendezvous/client/dial.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <utility>

#include "proto/os/not_inherited.h"
#include "proto/wire/handshake.h"

namespace ivy::store {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1'000};
// A full store closes connections too, so one close proves little; this many mean a refusal.
constexpr int kHangUps = 5;
constexpr int kKeepIdleSeconds = 30;
constexpr int kKeepIntervalSeconds = 10;
constexpr int kKeepProbes = 3;

Result<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0)
    return Error{Code::kInvalidArgument, "'" + std::string(text) + "' is no port"};
  return port;
}

Result<void> parse_unix(std::string_view path, DialTarget& target) {
  auto& address = reinterpret_cast<sockaddr_un&>(target.address);
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Error{Code::kInvalidArgument, "a socket's path has 1 to 107 bytes"};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  target.address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return {};
}

// Closes a descriptor unless it was given away.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) not_inherited::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// One attempt to dial and greet the store.
class Attempt {
 public:
  Attempt(const DialTarget& target, TimePoint deadline, Interrupt interrupt)
      : target_(target),
        deadline_(deadline),
        interrupt_(interrupt),
        socket_(not_inherited::open([&] {
          return ::socket(target.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        })) {}

  // Fails with Aborted if the store closes the connection on the greeting.
  Result<Dialled> run() {
    IVY_CHECK(connect());
    const std::string hello = hello_bytes();
    IVY_CHECK(send_all(hello));
    const std::string challenge = IVY_TRY(receive(kChallengeBytes));
    HandshakeChallenge checked = IVY_TRY(check_challenge(hello, challenge, target_.token));
    IVY_CHECK(send_all(make_proof(hello, challenge, target_.token)));
    WireDecoder decoder(kMaxFrameBytes);
    IVY_CHECK(take_welcome(decoder));
    return Dialled{socket_.release(), std::move(checked.epoch), std::move(decoder)};
  }

 private:
  Result<short> wait(short events) {
    return wait_ready(socket_.get(), events, deadline_, interrupt_);
  }

  Result<void> connect() {
    if (socket_.get() < 0) return errno_error(Code::kInternal, "open a socket", errno);
    const int one = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleSeconds,
               sizeof kKeepIdleSeconds);
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, &kKeepIntervalSeconds,
               sizeof kKeepIntervalSeconds);
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, &kKeepProbes, sizeof kKeepProbes);
    const auto* address = reinterpret_cast<const sockaddr*>(&target_.address);
    if (::connect(socket_.get(), address, target_.address_bytes) == 0) return {};
    if (errno != EINPROGRESS) return errno_error(Code::kUnavailable, "connect", errno);
    if (IVY_TRY(wait(POLLOUT)) == 0) return Error{Code::kUnavailable, "connect: no answer"};
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return errno_error(Code::kUnavailable, "connect", error);
    return {};
  }

  std::string hello_bytes() const {
    HandshakeHello hello;
    hello.purpose = target_.purpose;
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
                 "it hung up on our greeting: it serves another job or speaks another version"};
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

  static Error silence() { return Error{Code::kUnavailable, "no answer to our greeting"}; }

  // Receives exactly this many bytes.
  Result<std::string> receive(std::size_t exactly) {
    std::string bytes(exactly, '\0');
    std::size_t have = 0;
    while (have < exactly) have += IVY_TRY(receive_some(bytes.data() + have, exactly - have));
    return bytes;
  }

  Result<std::size_t> receive_some(char* to, std::size_t room) {
    while (true) {
      const ssize_t count = recv(socket_.get(), to, room, 0);
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
      if (frame->head.id != 0) return Error{Code::kDataLoss, "a reply before the welcome"};
      if (frame->head.kind == 0) return {};
      PayloadReader in(frame->payload);
      const std::string text(in.text());
      const bool is_complete = frame->head.kind == static_cast<std::uint8_t>(Code::kAlreadyExists);
      return Error{is_complete ? Code::kAlreadyExists : Code::kFailedPrecondition,
                   text.empty() ? "refused without a reason" : text};
    }
  }

  const DialTarget& target_;
  const TimePoint deadline_;
  const Interrupt interrupt_;
  Descriptor socket_;
};

}  // namespace

Result<void> parse_address(const std::string& text, DialTarget& target) {
  target.text = text;
  const Error wrong{Code::kInvalidArgument,
                    "'" + text + "' is no address: 10.0.0.1:4123, [fd00::1]:4123 or unix:/path"};
  if (text.starts_with("unix:")) return parse_unix(std::string_view(text).substr(5), target);
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong;
  const std::uint16_t port = IVY_TRY(parse_port(std::string_view(text).substr(colon + 1)));
  std::string host = text.substr(0, colon);
  if (!host.starts_with('[')) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(target.address);
    if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return wrong;
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    target.address_bytes = sizeof v4;
    return {};
  }
  if (!host.ends_with(']')) return wrong;
  host = host.substr(1, host.size() - 2);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(target.address);
  if (const std::size_t scope = host.find('%'); scope != std::string::npos) {
    v6.sin6_scope_id = if_nametoindex(host.c_str() + scope + 1);
    if (v6.sin6_scope_id == 0) return wrong;
    host.resize(scope);
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return wrong;
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  target.address_bytes = sizeof v6;
  return {};
}

Result<short> wait_ready(int descriptor, short events, TimePoint deadline, Interrupt interrupt) {
  while (true) {
    if (*interrupt.cancelled) return Error{Code::kCancelled, "cancelled"};
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::clamp<Clock::duration>(
            deadline - Clock::now(), Clock::duration(0), std::chrono::hours(1)));
    timespec pause{};
    pause.tv_sec = left.count() / 1'000'000'000;
    pause.tv_nsec = left.count() % 1'000'000'000;
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
    if (Clock::now() >= deadline) return short{0};
  }
}

Result<Dialled> dial_until(const DialTarget& target, TimePoint deadline, Interrupt interrupt) {
  milliseconds pause = kFirstPause;
  int hang_ups = 0;
  while (true) {
    Attempt attempt(target, deadline, interrupt);
    Result<Dialled> made = attempt.run();
    if (made.ok()) return made;
    const Error error = made.error().context("store at " + target.text);
    const bool hung_up = error.code == Code::kAborted;
    if (hung_up && ++hang_ups == kHangUps) return Error{Code::kUnauthenticated, error.message};
    if (!hung_up && error.code != Code::kUnavailable) return error;
    if (Clock::now() + pause >= deadline) return Error{Code::kUnavailable, error.message};
    // Adds jitter, so that clients do not all dial at the same moment.
    const auto jitter = static_cast<unsigned char>(random_bytes(1)[0]) * pause / 512;
    IVY_CHECK(wait_ready(-1, 0, Clock::now() + pause / 2 + jitter, interrupt));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace ivy::store
