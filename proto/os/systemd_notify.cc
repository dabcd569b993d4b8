// SPDX-License-Identifier: Apache-2.0
#include "proto/os/systemd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "proto/os/descriptor.h"

namespace ivy {
namespace {

std::optional<std::uint64_t> number_in(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void notify_service_manager(std::string_view assignments) {
  const char* const value = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = value == nullptr ? "" : value;
  sockaddr_un address{};
  if (path.size() < 2 || path.size() > sizeof address.sun_path) return;
  if (path.front() != '/' && path.front() != '@') return;
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  // In an abstract name every byte counts, so the length must end with the name.
  if (path.front() == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Ignore errors: the manager may no longer listen.
  [[maybe_unused]] const ssize_t sent =
      sendto(socket.get(), assignments.data(), assignments.size(), MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&address), size);
}

std::optional<std::chrono::microseconds> watchdog_interval() {
  const auto meant_for = number_in("WATCHDOG_PID");
  if (meant_for && *meant_for != static_cast<std::uint64_t>(getpid())) return std::nullopt;
  const auto interval = number_in("WATCHDOG_USEC");
  if (!interval || *interval == 0) return std::nullopt;
  return std::chrono::microseconds(*interval);
}

}  // namespace ivy
