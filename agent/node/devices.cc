#include "agent/node/devices.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace ivy {
namespace {

namespace fs = std::filesystem;

// No machine has more devices; a directory with more entries is not what we think it is.
constexpr std::size_t kMaxEntries = 4096;

template <class Predicate>
std::uint32_t count_entries(const std::string& directory, Predicate counts) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  std::uint32_t count = 0;
  std::size_t seen = 0;
  while (!error && entry != fs::directory_iterator() && seen++ < kMaxEntries) {
    if (counts(entry->path())) ++count;
    entry.increment(error);
  }
  return count;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool is_nvidia_display(const fs::path& device) {
  return first_line(device / "vendor") == "0x10de" &&
         first_line(device / "class").starts_with("0x03");
}

bool has_compute_units(const fs::path& node) {
  std::ifstream file(node / "properties");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value)
    if (name == "simd_count") return value > 0;
  return false;
}

}  // namespace

Devices find_devices(const std::string& root) {
  const auto any = [](const fs::path&) { return true; };
  std::uint32_t count = count_entries(root + "/proc/driver/nvidia/gpus", any);
  if (count == 0) count = count_entries(root + "/sys/bus/pci/devices", is_nvidia_display);
  if (count > 0) return Devices{count, "nvidia"};
  count = count_entries(root + "/sys/class/kfd/kfd/topology/nodes", has_compute_units);
  if (count > 0) return Devices{count, "amd"};
  return {};
}

}  // namespace ivy
