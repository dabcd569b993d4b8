// Times that launchers and supervisors share. Thread: any; constants.
#pragma once

#include <chrono>

namespace ivy {

// How long a supervisor on another host keeps the workers of a suspended launcher (Ctrl-Z), if the
// job's lease is not longer.
inline constexpr std::chrono::minutes kPauseLimit{60};

}  // namespace ivy
