// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/nvml_processes.h"

#include <algorithm>

namespace ivy::nvml {
namespace {

constexpr std::size_t kUsualProcesses = 16;
// More than a device can serve.
constexpr std::size_t kMaxProcesses = 4096;
constexpr unsigned kMaxSlices = 16;

}  // namespace

std::vector<DeviceUser> device_users(const Library& library, Device device) {
  if (library.processes == nullptr) return {};
  std::vector<ProcessInfo> infos(kUsualProcesses);
  auto count = static_cast<unsigned>(infos.size());
  Status status = library.processes(device, &count, infos.data());
  // If the array is too short, NVML returns only the count; a few processes may start in the
  // meantime.
  if (status == kInsufficientSize) {
    infos.resize(std::min(count + kUsualProcesses, kMaxProcesses));
    count = static_cast<unsigned>(infos.size());
    status = library.processes(device, &count, infos.data());
  }
  if (status != kSuccess || count > infos.size()) return {};
  std::vector<DeviceUser> users;
  for (unsigned i = 0; i < count; ++i)
    users.push_back({static_cast<int>(infos[i].pid),
                     infos[i].used_bytes == kNotAvailable ? 0 : infos[i].used_bytes});
  return users;
}

std::uint64_t memory_in_use(const Library& library, Device device) {
  Memory memory{};
  if (library.memory == nullptr || library.memory(device, &memory) != kSuccess) return 0;
  return memory.used;
}

bool is_in_mig_mode(const Library& library, Device device) {
  unsigned current = 0;
  unsigned pending = 0;
  return library.mig_mode != nullptr && library.mig_mode(device, &current, &pending) == kSuccess &&
         current != 0;
}

std::vector<Device> slices_of(const Library& library, Device device) {
  unsigned most = 0;
  if (library.max_slices == nullptr || library.slice_by_index == nullptr ||
      library.max_slices(device, &most) != kSuccess)
    return {};
  std::vector<Device> slices;
  for (unsigned i = 0; i < std::min(most, kMaxSlices); ++i) {
    Device slice = nullptr;
    if (library.slice_by_index(device, i, &slice) == kSuccess) slices.push_back(slice);
  }
  return slices;
}

}  // namespace ivy::nvml
