// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/device_mask.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {
namespace {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// Slurm writes "NoDevFiles" for a job without devices.
bool hides_all(const std::vector<std::string_view>& entries) {
  return entries.front().empty() || entries.front() == "-1" || entries.front() == "NoDevFiles";
}

bool is_uuid(std::string_view entry) {
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

// The device that one entry names, or the reason why it names none.
struct Meaning {
  std::optional<std::size_t> device;
  std::string error;
};

Meaning by_number(const FoundDevices& found, int number) {
  for (std::size_t i = 0; i < found.devices.size(); ++i)
    // A number names the first MIG instance of a GPU in MIG mode.
    if (found.devices[i].gpu == number) return {i, ""};
  const std::string last = found.devices.empty() ? "" : std::to_string(found.devices.back().gpu);
  return {std::nullopt, "there is no device " + std::to_string(number) +
                            (last.empty()  ? ""
                             : last == "0" ? ", only 0"
                                           : ", only 0-" + last)};
}

Meaning by_uuid(const FoundDevices& found, std::string_view entry) {
  Meaning meaning;
  bool any_unknown = false;
  for (std::size_t i = 0; i < found.devices.size(); ++i) {
    const FoundDevice& device = found.devices[i];
    // CUDA also accepts an instance's location in the GPU, which is how we name it without NVML.
    any_unknown = any_unknown || device.uuid.empty() || device.uuid.find('/') != std::string::npos;
    if (!device.uuid.starts_with(entry)) continue;
    if (device.uuid == entry) return {i, ""};
    if (meaning.device) {
      meaning.device.reset();
      meaning.error = std::string(entry) + " matches several devices";
      return meaning;
    }
    meaning.device = i;
  }
  if (!meaning.device && !any_unknown) meaning.error = "there is no device " + std::string(entry);
  return meaning;
}

// Level Zero's "1.0" is a tile of device 1 if a device is a whole GPU.
std::string_view without_tile(const FoundDevices& found, std::string_view entry) {
  const bool has_tiles = found.vendor != nullptr && !found.vendor->tile_variable.empty();
  return has_tiles ? entry.substr(0, entry.find('.')) : entry;
}

Meaning meaning_of(const FoundDevices& found, std::string_view written) {
  const std::string_view entry = without_tile(found, written);
  const std::optional<int> number = to_number<int>(entry);
  if (number && *number >= 0) return by_number(found, *number);
  if (is_uuid(entry)) return by_uuid(found, entry);
  return {std::nullopt, entry.empty()
                            ? "an entry is empty"
                            : "\"" + std::string(entry) + "\" is neither a number nor a UUID"};
}

// Returns the number, which scripts may parse, or the UUID of a MIG instance, since only that is
// exact.
std::string own_entry(const FoundDevice& device) {
  return device.is_mig ? device.uuid : std::to_string(device.gpu);
}

MaskedDevices everything(const FoundDevices& found) {
  MaskedDevices masked;
  for (std::size_t i = 0; i < found.devices.size(); ++i)
    masked.visible.push_back({i, own_entry(found.devices[i])});
  return masked;
}

}  // namespace

MaskedDevices apply_mask(const FoundDevices& found, const std::optional<std::string>& mask) {
  if (!mask) return everything(found);
  MaskedDevices masked;
  const std::vector<std::string_view> entries = split_at_commas(*mask);
  if (hides_all(entries)) return masked;
  for (const std::string_view entry : entries) {
    const Meaning meaning = meaning_of(found, entry);
    masked.error = meaning.error;
    const bool is_repeated =
        meaning.device && without_tile(found, entry) == entry &&
        std::any_of(masked.visible.begin(), masked.visible.end(),
                    [&](const VisibleDevice& other) { return other.device == meaning.device; });
    if (is_repeated) masked.error = std::string(entry) + " is listed twice";
    if (!masked.error.empty()) return masked;
    // Do not pass on an instance's number: it would mean the whole GPU.
    const bool is_instance = meaning.device && found.devices[*meaning.device].is_mig;
    masked.visible.push_back(
        {meaning.device, is_instance ? found.devices[*meaning.device].uuid : std::string(entry)});
  }
  return masked;
}

MaskedDevices apply_masks(const FoundDevices& found, const std::optional<std::string>& lower,
                          const std::optional<std::string>& upper) {
  if (!lower) return apply_mask(found, upper);
  MaskedDevices below = apply_mask(found, lower);
  FoundDevices left;
  for (std::size_t i = 0; i < below.visible.size(); ++i) {
    FoundDevice device;
    if (below.visible[i].device) device = found.devices[*below.visible[i].device];
    device.gpu = static_cast<int>(i);
    left.devices.push_back(std::move(device));
  }
  MaskedDevices masked = apply_mask(left, upper);
  for (VisibleDevice& visible : masked.visible)
    if (visible.device) visible.device = below.visible[*visible.device].device;
  if (masked.error.empty()) masked.error = below.error;
  return masked;
}

}  // namespace ivy
