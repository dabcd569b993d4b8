// SPDX-License-Identifier: Apache-2.0
// Events of a job's devices, for the report next to the rank that failed. Pure; thread: any.
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
  std::optional<int> rank;            // The rank whose device it is.
  std::optional<std::int64_t> at_ns;  // Launcher's clock; nothing: at some time since the start.
};

// "GPU 3 on node07 (rank 27): Xid 79, fallen off the bus, 2.0 s before". The notes of the rank's
// own device and host come first; in the others' order. At most eight lines; the last counts the
// rest.
std::vector<std::string> device_lines(const std::vector<DeviceNote>& notes, const WorkerEnd* first);

// Returns the event that most likely explains this exit, for a separate line: "GPU 3: Xid 79,
// fallen off the bus"; empty if none happened on its host.
std::string device_reason(const std::vector<DeviceNote>& notes, const WorkerEnd& first);

}  // namespace ivy
