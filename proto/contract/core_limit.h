// A process that holds a job's token or a private key leaves no core file when it crashes; what it
// starts for the user gets the user's own limit back. Thread: any.
#pragma once

#include <cstdint>
#include <optional>

namespace ivy {

// Sets the soft limit of core files to 0 for this process and its children, except those started
// under UsersCoreLimit; the hard limit stays. Call it once, at the start.
void leave_no_core();

// Returns the soft limit that leave_no_core() found, or nothing if that was not called.
std::optional<std::uint64_t> users_core_limit();

// While such an object exists, children that are started inherit that limit.
class UsersCoreLimit {
 public:
  UsersCoreLimit();
  ~UsersCoreLimit();
  UsersCoreLimit(const UsersCoreLimit&) = delete;
  UsersCoreLimit& operator=(const UsersCoreLimit&) = delete;
};

}  // namespace ivy
