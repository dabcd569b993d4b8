// Accelerators counted in directories that stand for /proc and /sys.
#include "agent/node/devices.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

class DevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-devices-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& content) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
  void add_pci(const std::string& name, const std::string& vendor, const std::string& kind) {
    write("/sys/bus/pci/devices/" + name + "/vendor", vendor + "\n");
    write("/sys/bus/pci/devices/" + name + "/class", kind + "\n");
  }
  std::string root_;
};

TEST_F(DevicesTest, FindsNoneWhereNothingIs) { EXPECT_EQ(find_devices(root_), Devices{}); }

TEST_F(DevicesTest, CountsTheDriversDevices) {
  write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: A");
  write("/proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: A");
  // The same devices on the bus are not counted again.
  add_pci("0000:01:00.0", "0x10de", "0x030200");
  EXPECT_EQ(find_devices(root_), (Devices{2, "nvidia"}));
}

TEST_F(DevicesTest, CountsDisplayDevicesOfTheVendorOnTheBus) {
  add_pci("0000:01:00.0", "0x10de", "0x030000");
  add_pci("0000:02:00.0", "0x10de", "0x030200");
  add_pci("0000:01:00.1", "0x10de", "0x040300");  // Its sound.
  add_pci("0000:03:00.0", "0x8086", "0x030000");  // Another vendor's display.
  EXPECT_EQ(find_devices(root_), (Devices{2, "nvidia"}));
}

TEST_F(DevicesTest, CountsAmdNodesWithComputeUnits) {
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes/";
  write(nodes + "0/properties", "cpu_cores_count 64\nsimd_count 0\n");
  write(nodes + "1/properties", "cpu_cores_count 0\nsimd_count 416\n");
  write(nodes + "2/properties", "cpu_cores_count 0\nsimd_count 416\n");
  EXPECT_EQ(find_devices(root_), (Devices{2, "amd"}));
}

}  // namespace
}  // namespace ivy
