// The states reported to systemd (sd_notify(3)): ready, status, alive, stopping. Without
// $NOTIFY_SOCKET every call does nothing. Thread: the loop's.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ivy::systemd_notify {

// True if a service manager waits for READY=1.
bool is_waiting();
// The longest time the service manager accepts between signs of life; nothing when it asks for
// none.
std::optional<std::chrono::microseconds> watchdog_interval();

void say_ready(const std::string& status);
void say_status(const std::string& status);
void say_alive();
void say_stopping(const std::string& status);

}  // namespace ivy::systemd_notify
