// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/device_facts.h"

#include <algorithm>
#include <optional>

#include "agent/devices/device_mask.h"
#include "proto/contract/device_vendor.h"

namespace ivy {
namespace {

// More cores than any machine has, yet few enough to fit into a frame.
constexpr std::size_t kMaxCores = 4096;
// Limit of listed processes per device.
constexpr std::size_t kMaxUsers = 64;

struct Masks {
  const Environment& environment;
  const Environment& own;

  std::optional<std::string> value(const std::string& name) const {
    const std::string* found = find_variable(own, name);
    if (found == nullptr) found = find_variable(environment, name);
    return found == nullptr ? std::nullopt : std::optional<std::string>(*found);
  }
};

std::string setting_text(const std::string& name, const std::optional<std::string>& value) {
  return value ? name + "=" + *value : "";
}

// Returns the variable with which Slurm gives each task separate devices, so that a one-task step
// sees few of them: --gpus-per-task, or its newer form --tres-per-task=gres/gpu:N.
std::string hiding_variable(const Environment& environment) {
  const std::string* count = find_variable(environment, "SLURM_GPUS_PER_TASK");
  if (count != nullptr && !count->empty()) return "SLURM_GPUS_PER_TASK=" + *count;
  const std::string* resources = find_variable(environment, "SLURM_TRES_PER_TASK");
  if (resources != nullptr && resources->find("gres/gpu") != std::string::npos)
    return "SLURM_TRES_PER_TASK=" + *resources;
  return {};
}

// Returns true if Slurm itself set this mask. Two variables that users do not change together with
// the mask show it: the same mask for OpenCL, and the machine-wide numbers of the allocated
// devices.
bool is_slurms(const std::string& name, const Masks& masks) {
  const std::string* const value = find_variable(masks.environment, name);
  const std::string* const job = find_variable(masks.environment, "SLURM_JOB_ID");
  if (value == nullptr || job == nullptr || find_variable(masks.own, name) != nullptr) return false;
  if (!hiding_variable(masks.environment).empty()) return true;
  const std::string* const again = find_variable(masks.environment, "GPU_DEVICE_ORDINAL");
  if (again != nullptr) return *again == *value;
  for (const char* const given : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"}) {
    const std::string* const numbers = find_variable(masks.environment, given);
    if (numbers == nullptr) continue;
    return std::count(numbers->begin(), numbers->end(), ',') ==
           std::count(value->begin(), value->end(), ',');
  }
  return false;
}

// Returns only the switches of SLURM_TOPOLOGY_ADDR: "core1.leaf2" for "core1.leaf2.node07". Without
// a topology plug-in the address is only the node's name.
std::string switches_above(const Environment& environment) {
  const std::string* const address = find_variable(environment, "SLURM_TOPOLOGY_ADDR");
  if (address == nullptr) return {};
  const std::string* const pattern = find_variable(environment, "SLURM_TOPOLOGY_ADDR_PATTERN");
  if (pattern != nullptr && pattern->find("switch") == std::string::npos &&
      pattern->find("block") == std::string::npos)
    return {};
  const std::size_t dot = address->rfind('.');
  return dot == std::string::npos ? "" : address->substr(0, dot);
}

// Level Zero can be configured to show a GPU as one device that uses all of its tiles.
FoundDevices with_devices_as_seen(FoundDevices found, const Environment& environment) {
  if (found.vendor == nullptr || found.vendor->tile_variable.empty()) return found;
  const std::string* const hierarchy = find_variable(environment, found.vendor->tile_variable);
  if (hierarchy == nullptr || *hierarchy != "COMPOSITE") return found;
  std::vector<FoundDevice> whole;
  for (FoundDevice& device : found.devices) {
    if (!whole.empty() && whole.back().bdf == device.bdf) continue;
    device.gpu = static_cast<int>(whole.size());
    whole.push_back(std::move(device));
  }
  found.devices = std::move(whole);
  return found;
}

// Applies the vendor's masks. A worker may rewrite the upper mask; a lower one remains in force.
MaskedDevices apply_vendors_masks(const FoundDevices& found, const DeviceVendor& vendor,
                                  const Masks& masks, DeviceView& view) {
  std::string name(vendor.mask);
  const std::string borrowed(vendor.borrowed_mask);
  if (!borrowed.empty() && !masks.value(name) && masks.value(borrowed)) name = borrowed;
  const std::string lower_name(vendor.lower_mask);
  const std::optional<std::string> upper = masks.value(name);
  const std::optional<std::string> lower =
      lower_name.empty() ? std::nullopt : masks.value(lower_name);
  const std::string lower_text = setting_text(lower_name, lower);
  view.set_mask_variable(name);
  view.set_mask(lower_text + (!lower || !upper ? "" : " ") + setting_text(name, upper));
  const bool is_set = lower || upper;
  view.set_is_slurms_mask(is_set && (!lower || is_slurms(lower_name, masks)) &&
                          (!upper || is_slurms(name, masks)));
  return apply_masks(found, lower, upper);
}

void add_device(const FoundDevice* device, const VisibleDevice& visible, const CoreList& allowed,
                HostFacts& facts) {
  Accelerator& accelerator = *facts.add_devices();
  accelerator.set_mask_entry(visible.entry);
  accelerator.set_numa_node(-1);
  if (device == nullptr) {
    accelerator.set_uuid(visible.entry);
    return;
  }
  accelerator.set_uuid(device->uuid);
  accelerator.set_bdf(device->bdf);
  accelerator.set_is_mig(device->is_mig);
  accelerator.set_numa_node(device->numa_node);
  accelerator.set_cores(core_list_text(common_cores(parse_core_list(device->cores), allowed)));
  accelerator.set_interface(device->interface);
  accelerator.set_used_bytes(device->used_bytes);
  accelerator.set_memory_bytes(device->memory_bytes);
  accelerator.set_pci_switch(device->pci_switch);
  accelerator.set_fabric(device->fabric);
  for (std::size_t i = 0; i < std::min(device->users.size(), kMaxUsers); ++i)
    accelerator.add_users(device->users[i]);
}

}  // namespace

void set_device_facts(const DeviceFindings& findings, const Environment& environment,
                      const Environment& masks, HostFacts& facts) {
  const FoundDevices found = with_devices_as_seen(findings.found, environment);
  facts.set_topology_address(switches_above(environment));
  if (!findings.allowed.empty()) facts.set_allowed_cores(core_list_text(findings.allowed));
  for (std::size_t i = 0; i < std::min(findings.cores.size(), kMaxCores); ++i) {
    const Core& core = findings.cores[i];
    CoreFacts& entry = *facts.add_core_list();
    entry.set_processors(core_list_text(core.processors));
    entry.set_numa_node(core.numa_node);
    entry.set_package(core.package);
    entry.set_l3(core.l3);
  }
  if (found.devices.empty() && found.notes.empty() && found.disagreements.empty()) return;
  DeviceView& view = *facts.mutable_device_view();
  view.set_present(static_cast<std::uint32_t>(found.devices.size()));
  view.set_source(found.source);
  for (const std::string& note : found.notes) view.add_notes(note);
  for (const std::string& text : found.disagreements) view.add_disagreements(text);
  view.set_unusable(static_cast<std::uint32_t>(found.unusable));
  view.set_hidden_by(hiding_variable(environment));
  if (found.devices.empty()) return;
  const Masks all{environment, masks};
  const MaskedDevices masked = apply_vendors_masks(found, *found.vendor, all, view);
  view.set_mask_error(masked.error);
  for (const VisibleDevice& visible : masked.visible)
    add_device(visible.device ? &found.devices[*visible.device] : nullptr, visible,
               findings.allowed, facts);
  facts.set_accelerators(static_cast<std::uint32_t>(facts.devices_size()));
  if (facts.devices_size() > 0) facts.set_accelerator_source(std::string(found.vendor->name));
}

}  // namespace ivy
