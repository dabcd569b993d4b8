// SPDX-License-Identifier: Apache-2.0
// The blocking client against a store that sends arbitrary bytes: before the proof, in the welcome,
// and in its replies. Each call must end soon, with a value or an error.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/client/client.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

using namespace std::chrono_literals;

const std::string kJob(32, '0');
const std::string kToken(32, 't');
constexpr auto kCallTime = 5ms;
// A call's own timeout, its grace period, and delays on a busy machine.
constexpr auto kTimeout = 20s;

// Listens at the client's address, serves one connection, and exits.
class HostileStore {
 public:
  explicit HostileStore(std::string_view script) : script_(script) {
    path_ = "/tmp/ivy-fuzz-" + std::to_string(getpid());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(path_.c_str());
    IVY_ASSERT(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    IVY_ASSERT(listen(listener_, 1) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~HostileStore() { thread_.join(); }
  HostileStore(const HostileStore&) = delete;
  HostileStore& operator=(const HostileStore&) = delete;
  std::string address() const { return "unix:" + path_; }

 private:
  std::string read(int fd, std::size_t count) const {
    std::string bytes(count, '\0');
    std::size_t have = 0;
    while (have < count) {
      const ssize_t got = recv(fd, bytes.data() + have, count - have, 0);
      if (got <= 0) return {};
      have += static_cast<std::size_t>(got);
    }
    return bytes;
  }
  static void say(int fd, std::string_view bytes) {
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  void serve() {
    const int fd = accept(listener_, nullptr, nullptr);
    // A second dial is not answered and ends at its deadline.
    ::close(listener_);
    unlink(path_.c_str());
    if (fd < 0) return;
    Input input(script_);
    const std::uint8_t mode = input.byte() % 4;
    const std::string hello = read(fd, kHelloBytes);
    if (mode > 0 && !hello.empty()) {
      say(fd, make_challenge(hello, kToken, std::string(kNonceBytes, 'n'),
                             std::string(kEpochBytes, 'e')));
      read(fd, kProofBytes);
    }
    std::string welcome;
    store::append_frame(welcome, {0, 0}, {});
    if (mode > 1) say(fd, welcome);
    input.byte();  // Selects the calls; used by the client.
    // In mode 3, the length and the number of each reply are valid.
    std::string bytes;
    std::uint32_t id = 1;
    while (mode == 3 && !input.done()) {
      const std::uint8_t kind = input.byte();
      store::append_frame(bytes, {kind, id++}, input.bytes(input.byte()));
    }
    bytes += input.rest();
    say(fd, bytes);
    shutdown(fd, SHUT_WR);
    // Waits until the client closes the connection; otherwise it would see a reset instead of the
    // bytes.
    std::array<char, 4096> ignored;
    while (recv(fd, ignored.data(), ignored.size(), 0) > 0) continue;
    ::close(fd);
  }

  const std::string script_;
  std::string path_;
  int listener_ = -1;
  std::thread thread_;
};

void call(store::Client& client, int which) {
  switch (which % 11) {
    case 0:
      (void)client.get("k").ok();
      break;
    case 1:
      (void)client.list("p").ok();
      break;
    case 2:
      (void)client.multi_get({"a", "b"}).ok();
      break;
    case 3:
      (void)client.compare_set("k", "1", "2").ok();
      break;
    case 4:
      (void)client.wait({"a"}, kCallTime).ok();
      break;
    case 5:
      (void)client.barrier("b", 2, 0, kCallTime).ok();
      break;
    case 6:
      (void)client.add("n", 1).ok();
      break;
    case 7:
      (void)client.why().ok();
      break;
    case 8:
      (void)client.pop("q", kCallTime).ok();
      break;
    case 9: {
      const auto watch = client.watch("w");
      for (int i = 0; watch.ok() && i < 4; ++i) (void)client.next_change(*watch, kCallTime).ok();
      if (watch.ok()) client.end_watch(*watch);
      break;
    }
    default:
      (void)client.ping().ok();
  }
}

}  // namespace

void store_client(std::string_view bytes) {
  const auto begin = std::chrono::steady_clock::now();
  {
    HostileStore hostile(bytes);
    store::ClientOptions options;
    options.address = hostile.address();
    options.job_id = kJob;
    options.token = kToken;
    options.connect_timeout = kCallTime;
    options.request_timeout = kCallTime;
    const auto client = store::Client::connect(options);
    const int first = bytes.size() > 1 ? static_cast<unsigned char>(bytes[1]) : 0;
    for (int i = 0; client.ok() && i < 3; ++i) call(**client, first + i);
  }
  IVY_ASSERT(std::chrono::steady_clock::now() - begin < kTimeout);
}

}  // namespace ivy::fuzz
