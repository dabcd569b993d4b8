// SPDX-License-Identifier: Apache-2.0
// NVIDIA's error codes from the kernel log, if it is readable. The log often names the process;
// NVML reports only the number, and only codes that occur while a process listens. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/device_health.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Parses one record of /dev/kmsg: "4,817,5051922,-;NVRM: Xid (PCI:0000:4d:00): 79, pid=...,
// name=...". Returns std::nullopt if it is not an error code. Pure.
std::optional<XidRecord> parse_xid_record(std::string_view record);

class KernelLog {
 public:
  // Starts at the end of the log: earlier records are ignored. `root`: see device_files.h.
  explicit KernelLog(const std::string& root);
  bool is_readable() const { return static_cast<bool>(file_); }
  // Returns the codes since the last call; reads at most 65,536 records.
  std::vector<XidRecord> read_new();
  // Skips everything written so far.
  void skip();

 private:
  Descriptor file_;
};

}  // namespace ivy
