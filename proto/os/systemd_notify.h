// SPDX-License-Identifier: Apache-2.0
// Notifies the service manager that started this process, and reads its watchdog interval:
// sd_notify(3) and sd_watchdog_enabled(3), without libsystemd, which is not on every system.
// Thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace ivy {

// Sends "NAME=VALUE" lines. Does nothing if no manager listens ($NOTIFY_SOCKET).
void notify_service_manager(std::string_view assignments);

// Returns the longest allowed interval between WATCHDOG=1 messages, or nothing if none are
// required.
std::optional<std::chrono::microseconds> watchdog_interval();

}  // namespace ivy
