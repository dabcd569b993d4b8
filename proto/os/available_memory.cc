#include "proto/os/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "proto/os/cgroup_files.h"

namespace ivy {

std::uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return std::min(kibibytes << 10, surrounding_memory_left());
    std::getline(file, unit);
  }
  return surrounding_memory_left();
}

}  // namespace ivy
