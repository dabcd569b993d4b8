// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/device_vendor.h"

#include <algorithm>
#include <array>

namespace ivy {
namespace {

constexpr std::array kVendors{
    // CUDA's default order is "fastest first"; all other tools number devices by PCI address.
    DeviceVendor{.name = "nvidia",
                 .mask = "CUDA_VISIBLE_DEVICES",
                 .order_variable = "CUDA_DEVICE_ORDER",
                 .order = "PCI_BUS_ID",
                 .other_mask = "NVIDIA_VISIBLE_DEVICES",
                 .tool = "nvidia-smi"},
    DeviceVendor{.name = "amd",
                 .mask = "HIP_VISIBLE_DEVICES",
                 .lower_mask = "ROCR_VISIBLE_DEVICES",
                 .borrowed_mask = "CUDA_VISIBLE_DEVICES",
                 .other_mask = "GPU_DEVICE_ORDINAL",
                 .tool = "amd-smi"},
    DeviceVendor{.name = "intel",
                 .mask = "ZE_AFFINITY_MASK",
                 .order_variable = "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
                 .order = "1",
                 .tool = "xpu-smi"},
};

bool is_mask_of(const DeviceVendor& vendor, std::string_view variable) {
  return variable == vendor.mask || variable == vendor.lower_mask;
}

}  // namespace

std::span<const DeviceVendor> device_vendors() { return kVendors; }

const DeviceVendor& device_vendor(std::string_view name) {
  const auto row = std::find_if(kVendors.begin(), kVendors.end(),
                                [&](const DeviceVendor& vendor) { return vendor.name == name; });
  return row == kVendors.end() ? kVendors.front() : *row;
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
