// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/device_vendor.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace ivy {
namespace {

constexpr std::array kVendors{
    // CUDA's default order is "fastest first"; all other tools number devices by PCI address.
    DeviceVendor{.id = Vendor::kNvidia,
                 .name = "nvidia",
                 .is_watched = true,
                 .mask = "CUDA_VISIBLE_DEVICES",
                 .order_variable = "CUDA_DEVICE_ORDER",
                 .order = "PCI_BUS_ID",
                 .other_mask = "NVIDIA_VISIBLE_DEVICES",
                 .tool = "nvidia-smi"},
    DeviceVendor{.id = Vendor::kAmd,
                 .name = "amd",
                 .mask = "HIP_VISIBLE_DEVICES",
                 .lower_mask = "ROCR_VISIBLE_DEVICES",
                 .borrowed_mask = "CUDA_VISIBLE_DEVICES",
                 .other_mask = "GPU_DEVICE_ORDINAL",
                 .tool = "amd-smi"},
    DeviceVendor{.id = Vendor::kIntel,
                 .name = "intel",
                 .is_xpu = true,
                 .tile_variable = "ZE_FLAT_DEVICE_HIERARCHY",
                 .mask = "ZE_AFFINITY_MASK",
                 .order_variable = "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
                 .order = "1",
                 .tool = "xpu-smi"},
};
static_assert(
    [] {
      for (std::size_t row = 0; row < kVendors.size(); ++row)
        if (static_cast<std::size_t>(kVendors[row].id) != row) return false;
      return true;
    }(),
    "device_vendor(Vendor) takes a vendor's number for its row");

bool is_mask_of(const DeviceVendor& vendor, std::string_view variable) {
  return variable == vendor.mask || variable == vendor.lower_mask;
}

}  // namespace

std::span<const DeviceVendor> device_vendors() { return kVendors; }

const DeviceVendor& device_vendor(Vendor vendor) {
  return kVendors[static_cast<std::size_t>(vendor)];
}

const DeviceVendor* find_device_vendor(std::string_view name) {
  const auto row = std::find_if(kVendors.begin(), kVendors.end(),
                                [&](const DeviceVendor& vendor) { return vendor.name == name; });
  return row == kVendors.end() ? nullptr : &*row;
}

const DeviceVendor& device_vendor(std::string_view name) {
  const DeviceVendor* const vendor = find_device_vendor(name);
  return vendor != nullptr ? *vendor : device_vendor(Vendor::kNvidia);
}

bool is_device_mask(std::string_view variable) {
  return !variable.empty() &&
         std::any_of(kVendors.begin(), kVendors.end(),
                     [&](const DeviceVendor& vendor) { return is_mask_of(vendor, variable); });
}

bool selects_devices(std::string_view variable) {
  return !variable.empty() &&
         std::any_of(kVendors.begin(), kVendors.end(), [&](const DeviceVendor& vendor) {
           return is_mask_of(vendor, variable) || variable == vendor.other_mask;
         });
}

}  // namespace ivy
