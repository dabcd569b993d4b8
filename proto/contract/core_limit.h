// SPDX-License-Identifier: Apache-2.0
// Keeps core files from containing a job's token or a private key: ivyrun's processes write no core
// files, and the user's processes get the user's own limit back. Thread: any.
#pragma once

#include <cstdint>
#include <optional>

namespace ivy {

// Sets the soft limit of core files to 0 for this process and its children, except children started
// under UsersCoreLimit. The hard limit is unchanged. Call it once, at the start.
void leave_no_core();

// Returns the soft limit that leave_no_core() found, or nothing if that was not called.
std::optional<std::uint64_t> users_core_limit();

// New children inherit the user's limit while an object of this class exists.
class UsersCoreLimit {
 public:
  UsersCoreLimit();
  ~UsersCoreLimit();
  UsersCoreLimit(const UsersCoreLimit&) = delete;
  UsersCoreLimit& operator=(const UsersCoreLimit&) = delete;
};

}  // namespace ivy
