#include "agent/daemon/systemd_notify.h"

#include <systemd/sd-daemon.h>

#include <cstdint>
#include <cstdlib>

#include "agent/daemon/agent_log.h"

namespace ivy::systemd_notify {
namespace {

// Status texts are escaped: a newline in one would begin another assignment.
void notify(const std::string& assignments) { sd_notify(0, assignments.c_str()); }
std::string status_line(const std::string& status) {
  return "STATUS=" + agent_log::escaped(status);
}

}  // namespace

bool is_waiting() {
  const char* const socket = std::getenv("NOTIFY_SOCKET");
  return socket != nullptr && *socket != '\0';
}

std::optional<std::chrono::microseconds> watchdog_interval() {
  std::uint64_t interval_us = 0;
  if (sd_watchdog_enabled(0, &interval_us) <= 0 || interval_us == 0) return std::nullopt;
  return std::chrono::microseconds(interval_us);
}

void say_ready(const std::string& status) { notify("READY=1\n" + status_line(status)); }
void say_status(const std::string& status) { notify(status_line(status)); }
void say_alive() { notify("WATCHDOG=1"); }
void say_stopping(const std::string& status) { notify("STOPPING=1\n" + status_line(status)); }

}  // namespace ivy::systemd_notify
