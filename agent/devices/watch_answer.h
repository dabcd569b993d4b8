// SPDX-License-Identifier: Apache-2.0
// Output of `ivy-probe watch` for the supervisor. Requests are words on its standard input, one per
// line; it answers each except "begin" with lines, the last of which is "ivy end". In this list,
// blanks after the keyword stand for the tabs between fields (probe_lines.h).
//
//   ivy-probe 1
//   ivy ready                                     printed after the first reading
//   begin: takes a new first reading and forgets earlier events
//   look: reports events since then
//     ivy finding DEVICE BDF AT_NS TEXT
//   memory: lists the holders of device memory
//     ivy held DEVICE UUID BYTES BUSY
//     ivy holder UUID PID BYTES NAME              follows the "held" line of this UUID
//
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/device_health.h"

namespace ivy {

// A process that holds memory on a device; pid 0 and an empty name if unknown.
struct DeviceHolder {
  int pid = 0;
  std::uint64_t bytes = 0;
  std::string name;
};

// A GPU ("GPU 3") or one of its MIG instances, with all memory in use there.
struct HeldMemory {
  std::string device;
  std::string uuid;
  std::uint64_t bytes = 0;
  int busy_percent = -1;  // Share of the last sample in which a kernel ran; -1 if unknown.
  std::vector<DeviceHolder> holders;
};

std::string finding_line(const DeviceFinding& finding);
std::string held_lines(const HeldMemory& held);

struct WatchAnswer {
  bool is_ready = false;
  bool is_complete = false;  // "ivy end" has arrived.
  std::vector<DeviceFinding> findings;
  std::vector<HeldMemory> held;
};

// Adds the contents of one line, without its line end, to `answer`. Ignores lines of another form,
// because libraries may print anything. Keeps at most 64 findings, and 64 devices with 64 holders
// each.
void take_watch_line(std::string_view line, WatchAnswer& answer);

}  // namespace ivy
