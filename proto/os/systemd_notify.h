// What a service tells the manager that has started it, and is asked by it: sd_notify(3) and
// sd_watchdog_enabled(3), without libsystemd, which is not on every system. Thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace ivy {

// Sends "NAME=VALUE" lines. Does nothing where no manager listens ($NOTIFY_SOCKET).
void notify_service_manager(std::string_view assignments);

// How often the manager wants to hear WATCHDOG=1 at least. Nothing: it does not want to.
std::optional<std::chrono::microseconds> watchdog_interval();

}  // namespace ivy
