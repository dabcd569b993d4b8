// What systemd is told (sd_notify(3)): ready, status, alive, stopping. Without $NOTIFY_SOCKET every
// call does nothing. Thread: the loop's.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ivy::systemd_notify {

// Somebody waits for READY=1.
bool is_waiting();
// How often the service manager wants a sign of life at least; nothing when it wants none.
std::optional<std::chrono::microseconds> watchdog_interval();

void say_ready(const std::string& status);
void say_status(const std::string& status);
void say_alive();
void say_stopping(const std::string& status);

}  // namespace ivy::systemd_notify
