// SPDX-License-Identifier: Apache-2.0
// NVIDIA's error codes in the kernel's log, where it may be read: NVML tells the number alone, and
// only of what happens while a process listens. Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/devices/device_health.h"
#include "proto/os/descriptor.h"

namespace ivy {

// One record of /dev/kmsg, "4,817,5051922,-;NVRM: Xid (PCI:0000:4d:00): 79, pid=..., name=...".
// Nothing: it is no error code. Pure.
std::optional<XidRecord> parse_xid_record(std::string_view record);

class KernelLog {
 public:
  // Only what is written from now on counts. `root` as in device_files.h.
  explicit KernelLog(const std::string& root);
  bool is_readable() const { return static_cast<bool>(file_); }
  // The codes since the last call; reads at most 1 MiB.
  std::vector<XidRecord> read_new();
  // Forgets what has been written until now.
  void skip();

 private:
  Descriptor file_;
};

}  // namespace ivy
