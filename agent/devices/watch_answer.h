// SPDX-License-Identifier: Apache-2.0
// Output of `ivy-probe watch` for the supervisor. Requests are words on its standard input, one per
// line; it answers each except "begin" with lines that end with "ivy end".
//
//   ivy-probe 1
//   ivy ready                                     it has taken the first reading
//   begin: takes a reading anew, and forgets what has happened before
//   look: what has happened since
//     ivy finding DEVICE BDF AT_NS TEXT
//   memory: who holds memory of devices
//     ivy held DEVICE UUID BYTES BUSY
//     ivy holder UUID PID BYTES NAME              behind the "held" of this UUID
//
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/device_health.h"

namespace ivy {

// A process with memory on a device; 0 and an empty name: unknown.
struct DeviceHolder {
  int pid = 0;
  std::uint64_t bytes = 0;
  std::string name;
};

// A GPU ("GPU 3"), or a MIG instance of it, with all memory that is in use there.
struct HeldMemory {
  std::string device;
  std::string uuid;
  std::uint64_t bytes = 0;
  int busy_percent = -1;  // In how much of the last moments something ran there; -1: unknown.
  std::vector<DeviceHolder> holders;
};

std::string finding_line(const DeviceFinding& finding);
std::string held_lines(const HeldMemory& held);

struct WatchAnswer {
  bool is_ready = false;
  bool is_complete = false;  // "ivy end" has come, and so all of it.
  std::vector<DeviceFinding> findings;
  std::vector<HeldMemory> held;
};

// Adds what one line, without its end, says; what is no fact of ours is passed over: a library may
// print what it likes. At most 64 findings and 64 devices with 64 holders each are kept.
void take_watch_line(std::string_view line, WatchAnswer& answer);

}  // namespace ivy
