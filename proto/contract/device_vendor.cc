#include "proto/contract/device_vendor.h"

#include <algorithm>
#include <array>

namespace ivy {
namespace {

constexpr std::array kVendors{
    // CUDA's own order is "fastest first"; everything else counts by PCI address.
    DeviceVendor{"nvidia", "CUDA_VISIBLE_DEVICES", "", "", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
    DeviceVendor{"amd", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "",
                 ""},
};

}  // namespace

std::span<const DeviceVendor> device_vendors() { return kVendors; }

const DeviceVendor& device_vendor(std::string_view name) {
  const auto row = std::find_if(kVendors.begin(), kVendors.end(),
                                [&](const DeviceVendor& vendor) { return vendor.name == name; });
  return row == kVendors.end() ? kVendors.front() : *row;
}

bool is_device_mask(std::string_view variable) {
  return !variable.empty() &&
         std::any_of(kVendors.begin(), kVendors.end(), [&](const DeviceVendor& vendor) {
           return variable == vendor.mask || variable == vendor.lower_mask;
         });
}

}  // namespace ivy
