// SPDX-License-Identifier: Apache-2.0
// A cgroup for an ordinary user: when the cgroup that we were started in cannot be written, but the
// user has a systemd of his own, the warden is started again inside a transient scope with
// Delegate=yes. In it the job survives the end of a login session. Thread: the only one, before the
// rest of the role has begun.
#pragma once

#include <string>

namespace ivy {

enum class ScopeStep {
  kRunHere,        // Go on in this process: in the scope, or without one.
  kRunsElsewhere,  // The warden runs in the scope: this process has nothing left to do.
};

// unit: name of the scope without ".scope". arguments: argv of this process, which is run again.
// Takes at most kScopePatienceMs, and never makes a start fail: without a scope the process tree
// holds the job.
ScopeStep enter_user_scope(const std::string& unit, char** arguments);

// systemd answers in a few milliseconds; one that is stuck must not keep the job from starting.
inline constexpr int kScopePatienceMs = 3000;

}  // namespace ivy
