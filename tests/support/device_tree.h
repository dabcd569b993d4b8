// SPDX-License-Identifier: Apache-2.0
// A directory that represents "/" of a host with accelerators; removed by the destructor. The texts
// are copies from real hosts. Thread: the test's.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ivy {

class DeviceTree {
 public:
  DeviceTree() {
    char name[] = "/tmp/ivy-devices-XXXXXX";
    root_ = mkdtemp(name) != nullptr ? name : "";
  }
  ~DeviceTree() { std::filesystem::remove_all(root_); }
  DeviceTree(const DeviceTree&) = delete;
  DeviceTree& operator=(const DeviceTree&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& content = "") {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
  void link(const std::string& path, const std::string& target) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::create_symlink(target, file);
  }
  // Adds a device below /sys/devices/PARENT, with its link in the bus's directory.
  void pci(const std::string& bdf, const std::string& vendor, const std::string& kind,
           const std::string& parent = "pci0000:00", const std::string& cores = "0-15",
           int numa_node = 0) {
    const std::string place = "/sys/devices/" + parent + "/" + bdf;
    write(place + "/vendor", vendor + "\n");
    write(place + "/class", kind + "\n");
    write(place + "/numa_node", std::to_string(numa_node) + "\n");
    write(place + "/local_cpulist", cores + "\n");
    link("/sys/bus/pci/devices/" + bdf, "../../../devices/" + parent + "/" + bdf);
  }
  void nvidia(int minor, const std::string& bdf, const std::string& uuid,
              const std::string& parent = "pci0000:00", bool is_excluded = false) {
    pci(bdf, "0x10de", "0x030200", parent);
    write("/proc/driver/nvidia/gpus/" + bdf + "/information",
          "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 200\nGPU UUID: \t " + uuid +
              "\nVideo BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nBus Location: \t " + bdf +
              "\nDevice Minor: \t " + std::to_string(minor) + "\nGPU Excluded:\t " +
              (is_excluded ? "Yes" : "No") + "\n");
  }

 private:
  std::string root_;
};

}  // namespace ivy
