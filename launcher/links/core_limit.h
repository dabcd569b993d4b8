// The launcher holds a job's token and the keys of ssh sessions: when it crashes it leaves no core
// file. What it starts here gets the user's own limit back. Thread: one at a time.
#pragma once

namespace ivy {

// For the rest of this process; the hard limit stays. Once, at the start.
void leave_no_core();

// As long as it lives, a child that is started inherits the limit that leave_no_core() found.
class UsersCoreLimit {
 public:
  UsersCoreLimit();
  ~UsersCoreLimit();
  UsersCoreLimit(const UsersCoreLimit&) = delete;
  UsersCoreLimit& operator=(const UsersCoreLimit&) = delete;
};

}  // namespace ivy
