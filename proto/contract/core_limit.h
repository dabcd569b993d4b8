// A process that holds a job's token or a private key leaves no core file when it crashes; what it
// starts for the user gets the user's own limit back. Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>

namespace ivy {

// For the rest of this process, and of those that it forks and that stay what it is; the hard limit
// stays. Once, at the start.
void leave_no_core();

// The soft limit that leave_no_core() found; nothing: it was not called.
std::optional<std::uint64_t> users_core_limit();

// As long as it lives, a child that is started inherits that limit.
class UsersCoreLimit {
 public:
  UsersCoreLimit();
  ~UsersCoreLimit();
  UsersCoreLimit(const UsersCoreLimit&) = delete;
  UsersCoreLimit& operator=(const UsersCoreLimit&) = delete;
};

}  // namespace ivy
