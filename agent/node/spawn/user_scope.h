// SPDX-License-Identifier: Apache-2.0
// A cgroup for an ordinary user: if the cgroup in which we were started is not writable, but the
// user has a systemd instance, the warden is started again inside a transient scope with
// Delegate=yes, in which the job survives the end of the login session. Thread: the only one,
// before the rest of the role starts.
#pragma once

#include <string>

namespace ivy {

enum class ScopeStep {
  kRunHere,      // Continue in this process, inside or without a scope.
  kRunsInScope,  // The warden runs in the scope, and this process should exit.
};

// unit: the scope's name without ".scope". arguments: argv of this process, for the second start.
// Takes at most kScopeTimeoutMs and never makes a start fail: without a scope the job uses the
// process tree.
ScopeStep enter_user_scope(const std::string& unit, char** arguments);

// systemd answers in a few milliseconds; a hung one must not keep the job from starting.
inline constexpr int kScopeTimeoutMs = 3000;

}  // namespace ivy
