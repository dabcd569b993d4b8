// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/probe_answer.h"

#include <algorithm>

#include "agent/devices/probe_lines.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Limit of a library's own output that is kept.
constexpr std::size_t kMaxNoiseBytes = 200;

bool take_device(const ProbeFields& fields, ProbeAnswer& answer) {
  if (fields.size() != 6) return false;
  NvmlDevice device;
  device.bdf = fields[1];
  device.uuid = fields[2];
  device.is_mig_enabled = fields[4] == "1";
  device.model = fields[5];
  answer.nvml.devices.push_back(std::move(device));
  return read_number(fields[3], answer.nvml.devices.back().minor);
}

bool take_slice(const ProbeFields& fields, ProbeAnswer& answer) {
  const auto device = std::find_if(
      answer.nvml.devices.begin(), answer.nvml.devices.end(),
      [&](const NvmlDevice& other) { return fields.size() > 1 && other.bdf == fields[1]; });
  if (fields.size() != 5 || device == answer.nvml.devices.end()) return false;
  MigSlice slice;
  slice.uuid = fields[4];
  const bool is_right =
      read_number(fields[2], slice.gpu_instance) && read_number(fields[3], slice.compute_instance);
  device->slices.push_back(std::move(slice));
  return is_right;
}

bool take_user(const ProbeFields& fields, ProbeAnswer& answer) {
  int pid = 0;
  std::uint64_t bytes = 0;
  if (fields.size() != 4 || !read_number(fields[2], pid) || !read_number(fields[3], bytes))
    return false;
  const auto add = [&](auto& entry) {
    if (entry.uuid != fields[1]) return;
    entry.users.push_back(pid);
    entry.used_bytes += bytes;
  };
  for (NvmlDevice& device : answer.nvml.devices) {
    add(device);
    for (MigSlice& slice : device.slices) add(slice);
  }
  return true;
}

bool take_memory(const ProbeFields& fields, ProbeAnswer& answer) {
  std::uint64_t bytes = 0;
  if (fields.size() != 3 || !read_number(fields[2], bytes)) return false;
  for (NvmlDevice& device : answer.nvml.devices) {
    if (device.uuid == fields[1]) device.memory_bytes = bytes;
    for (MigSlice& slice : device.slices)
      if (slice.uuid == fields[1]) slice.memory_bytes = bytes;
  }
  return true;
}

bool take_fabric(const ProbeFields& fields, ProbeAnswer& answer) {
  if (fields.size() != 3) return false;
  for (NvmlDevice& device : answer.nvml.devices)
    if (device.uuid == fields[1]) device.fabric = fields[2];
  return true;
}

bool take_core(const ProbeFields& fields, ProbeAnswer& answer) {
  if (fields.size() != 5) return false;
  Core core;
  core.processors = parse_core_list(fields[1]);
  const bool is_right = !core.processors.empty() && read_number(fields[2], core.numa_node) &&
                        read_number(fields[3], core.package) && read_number(fields[4], core.l3);
  answer.cores.push_back(std::move(core));
  return is_right;
}

bool take_line(std::string_view line, ProbeAnswer& answer) {
  const ProbeFields fields = split_probe_line(line);
  const std::string_view keyword = fields.front();
  if (keyword == "device") return take_device(fields, answer);
  if (keyword == "slice") return take_slice(fields, answer);
  if (keyword == "user") return take_user(fields, answer);
  if (keyword == "memory") return take_memory(fields, answer);
  if (keyword == "fabric") return take_fabric(fields, answer);
  if (keyword == "core") return take_core(fields, answer);
  if (fields.size() != 2) return false;
  if (keyword == "nvml") {
    answer.nvml.is_present = true;
    answer.nvml.driver_version = fields[1];
    return true;
  }
  answer.nvml.error = fields[1];
  return keyword == "no-nvml";
}

Error no_answer(const std::string& why, const std::string& noise) {
  return Error{Code::kDataLoss, why + (noise.empty() ? "" : ": " + noise)};
}

}  // namespace

std::string probe_text(const ProbeAnswer& answer) {
  std::string text = std::string(kProbeGreeting) + "\n";
  if (answer.nvml.is_present) add_probe_line(text, "nvml", {answer.nvml.driver_version});
  if (!answer.nvml.error.empty()) add_probe_line(text, "no-nvml", {answer.nvml.error});
  const auto add_users = [&](const auto& entry) {
    if (entry.memory_bytes > 0)
      add_probe_line(text, "memory", {entry.uuid, std::to_string(entry.memory_bytes)});
    for (std::size_t i = 0; i < entry.users.size(); ++i)
      // The first line carries the sum.
      add_probe_line(text, "user",
                     {entry.uuid, std::to_string(entry.users[i]),
                      std::to_string(i == 0 ? entry.used_bytes : 0)});
  };
  for (const NvmlDevice& device : answer.nvml.devices) {
    add_probe_line(text, "device",
                   {device.bdf, device.uuid, std::to_string(device.minor),
                    device.is_mig_enabled ? "1" : "0", device.model});
    for (const MigSlice& slice : device.slices)
      add_probe_line(text, "slice",
                     {device.bdf, std::to_string(slice.gpu_instance),
                      std::to_string(slice.compute_instance), slice.uuid});
    if (!device.fabric.empty()) add_probe_line(text, "fabric", {device.uuid, device.fabric});
    add_users(device);
    for (const MigSlice& slice : device.slices) add_users(slice);
  }
  for (const Core& core : answer.cores)
    add_probe_line(text, "core",
                   {core_list_text(core.processors), std::to_string(core.numa_node),
                    std::to_string(core.package), std::to_string(core.l3)});
  add_probe_line(text, "end", {});
  return text;
}

Result<ProbeAnswer> parse_probe_text(std::string_view text) {
  ProbeAnswer answer;
  std::string noise;
  bool is_greeted = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == kProbeGreeting) {
      is_greeted = true;
    } else if (is_greeted && line == "ivy end") {
      return answer;
    } else if (!line.starts_with(kProbeMark)) {
      if (noise.empty()) noise = probe_field(std::string(line.substr(0, kMaxNoiseBytes)));
    } else if (!is_greeted || !take_line(line.substr(kProbeMark.size()), answer)) {
      return no_answer("ivy-probe printed an invalid line",
                       probe_field(std::string(line.substr(0, kMaxNoiseBytes))));
    }
  }
  if (noise.empty()) noise = probe_field(std::string(text.substr(0, kMaxNoiseBytes)));
  return no_answer("ivy-probe exited before its answer was complete", noise);
}

}  // namespace ivy
