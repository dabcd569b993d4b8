// SPDX-License-Identifier: Apache-2.0
// Formats events of a job's devices for the report of the rank that failed first. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/verdict.h"

namespace ivy {

struct DeviceNote {
  std::string host;
  std::string device;                 // "GPU 3", "mlx5_0 port 1"
  std::string text;                   // "Xid 79, fallen off the bus"
  std::optional<int> rank;            // The rank that uses the device.
  std::optional<std::int64_t> at_ns;  // Launcher's clock; if empty, at some time since the start.
  unsigned xid = 0;                   // The Xid of a GPU; 0 for anything else.
};

// Returns lines such as "GPU 3 on node07 (rank 27): Xid 79, fallen off the bus, 2.0 s before". The
// failed rank's own device and host come first; the others keep their order. At most eight events;
// one more line then gives the number of the remaining ones.
std::vector<std::string> device_lines(const std::vector<DeviceNote>& notes, const WorkerEnd* first);

// Returns the event that most likely explains this exit, for a separate line: "GPU 3: Xid 79,
// fallen off the bus"; empty if none happened on its host.
std::string device_reason(const std::vector<DeviceNote>& notes, const WorkerEnd& first);

}  // namespace ivy
