#include "agent/node/devices.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <memory>
#include <string_view>

namespace ivy {
namespace {

// No machine has more devices; a directory with more entries is not what we think it is.
constexpr std::size_t kMaxEntries = 4096;

// By system calls: a host with many devices is asked at every start, and streams cost several times
// as much as what they read.
template <class Predicate>
std::uint32_t count_entries(const std::string& directory, Predicate counts) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open_directory(opendir(directory.c_str()), closedir);
  if (!open_directory) return 0;
  std::uint32_t count = 0;
  std::size_t seen = 0;
  while (const dirent* entry = readdir(open_directory.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (seen++ == kMaxEntries) break;
    if (counts(directory + "/" + std::string(name))) ++count;
  }
  return count;
}

std::string first_line(const std::string& path) {
  std::array<char, 128> buffer{};  // The files asked for hold one number.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t bytes = read(fd, buffer.data(), buffer.size());
  close(fd);
  const std::string_view text(buffer.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return std::string(text.substr(0, text.find('\n')));
}

bool is_nvidia_display(const std::string& device) {
  return first_line(device + "/vendor") == "0x10de" &&
         first_line(device + "/class").starts_with("0x03");
}

bool has_compute_units(const std::string& node) {
  std::ifstream file(node + "/properties");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value)
    if (name == "simd_count") return value > 0;
  return false;
}

}  // namespace

Devices find_devices(const std::string& root) {
  const auto any = [](const std::string&) { return true; };
  std::uint32_t count = count_entries(root + "/proc/driver/nvidia/gpus", any);
  if (count == 0) count = count_entries(root + "/sys/bus/pci/devices", is_nvidia_display);
  if (count > 0) return Devices{count, "nvidia"};
  count = count_entries(root + "/sys/class/kfd/kfd/topology/nodes", has_compute_units);
  if (count > 0) return Devices{count, "amd"};
  return {};
}

}  // namespace ivy
