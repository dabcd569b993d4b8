// SPDX-License-Identifier: Apache-2.0
// The node binary with its real warden, relay and dialer, and a supervisor that echoes all bytes of
// a transport. The supervisor logs how each transport ended to the file named by IVY_TEST_LOG.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "agent/node/roles/dial.h"
#include "agent/node/roles/relay.h"
#include "agent/node/roles/warden.h"
#include "agent/node/supervisor/supervisor.h"

namespace {

enum class End { kNone, kHalfClose, kHangUp };

void log_line(std::string_view line) {
  const char* path = std::getenv("IVY_TEST_LOG");
  if (path == nullptr) return;
  const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  [[maybe_unused]] const ssize_t n = write(fd, line.data(), line.size());
  close(fd);
}

bool write_all(int fd, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = write(fd, bytes, size);
    if (count <= 0) return false;
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

End serve(int transport) {
  static std::array<char, 65536> buffer;
  const ssize_t count = read(transport, buffer.data(), buffer.size());
  if (count > 0 && write_all(transport, buffer.data(), static_cast<std::size_t>(count))) {
    return End::kNone;
  }
  pollfd state{transport, 0, 0};
  poll(&state, 1, 0);
  const End end = (state.revents & POLLHUP) != 0 ? End::kHangUp : End::kHalfClose;
  log_line(end == End::kHangUp ? "hang-up\n" : "half-close\n");
  if (end == End::kHalfClose) write_all(transport, "bye\n", 4);
  close(transport);
  return end;
}

// Exits after the first launcher that half-closes its side. After a hang-up it waits for another
// transport.
int run_echo_supervisor(const ivy::SupervisorStart& start) {
  prctl(PR_SET_NAME, "ivy-supervisor");
  std::vector<pollfd> fds = {{start.listening_fd, POLLIN, 0}, {start.link_fd, POLLIN, 0}};
  constexpr int kAbandonedMs = 20'000;
  while (poll(fds.data(), fds.size(), kAbandonedMs) > 0) {
    for (pollfd& waiting : fds) {
      if (waiting.revents == 0 || waiting.fd == start.listening_fd) continue;
      const End end = serve(waiting.fd);
      if (end == End::kHalfClose) return 0;
      if (end == End::kHangUp) waiting.fd = -1;
    }
    if (fds[0].revents != 0) {
      fds.push_back({accept4(start.listening_fd, nullptr, nullptr, SOCK_CLOEXEC), POLLIN, 0});
    }
  }
  log_line("abandoned\n");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc > 1 ? argv[1] : "";
  if (role == "relay") return ivy::run_relay();
  if (role == "dial") return ivy::run_dial();
  if (role != "warden") return 2;
  const auto start = ivy::parse_warden_arguments(argc - 2, argv + 2);
  return start.ok() ? ivy::run_warden(*start, run_echo_supervisor) : 2;
}
