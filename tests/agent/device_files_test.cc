// SPDX-License-Identifier: Apache-2.0
// Recorded trees of files: reading and combining them.
#include "agent/devices/device_files.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/devices/core_files.h"
#include "tests/support/device_tree.h"

namespace ivy {
namespace {

FoundDevices found_in(const DeviceTree& tree) {
  return combine_findings(read_device_files(tree.root()), NvmlAnswer{});
}

TEST(DeviceFilesTest, FindsNoDevicesInAnEmptyTree) {
  const DeviceTree tree;
  const FoundDevices found = found_in(tree);
  EXPECT_TRUE(found.devices.empty());
  EXPECT_EQ(found.vendor, nullptr);
  EXPECT_TRUE(found.notes.empty());
}

TEST(DeviceFilesTest, ReadsTheDriversDevicesWithTheirBusAddress) {
  DeviceTree tree;
  tree.nvidia(0, "0000:07:00.0", "GPU-a", "pci0000:00/0000:00:01.1");
  tree.nvidia(1, "0000:47:00.0", "GPU-b", "pci0000:40");
  for (const char* node : {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"})
    tree.write(node);
  tree.pci("0000:0c:00.0", "0x15b3", "0x020000", "pci0000:00/0000:00:01.1");
  tree.link("/sys/class/net/ib0/device", "../../../devices/pci0000:00/0000:00:01.1/0000:0c:00.0");
  tree.write("/sys/class/net/lo/mtu", "65536");
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 2u);
  EXPECT_EQ(found.vendor, &device_vendor(Vendor::kNvidia));
  EXPECT_EQ(found.devices[0].uuid, "GPU-a");
  EXPECT_EQ(found.devices[0].model, "NVIDIA A100-SXM4-40GB");
  EXPECT_EQ(found.devices[0].cores, "0-15");
  EXPECT_EQ(found.devices[0].numa_node, 0);
  EXPECT_EQ(found.devices[0].interface, "ib0");
  EXPECT_EQ(found.devices[1].interface, "") << "another root complex is not near";
  EXPECT_TRUE(found.disagreements.empty());
}

TEST(DeviceFilesTest, SkipsDevicesThatCannotBeOpened) {
  DeviceTree tree;
  for (int minor = 0; minor < 4; ++minor)
    tree.nvidia(minor, "0000:0" + std::to_string(minor + 1) + ":00.0",
                "GPU-" + std::to_string(minor), "pci0000:00", minor == 3);
  tree.link("/dev/nvidia0", "nvidia0");  // Not even root can open it.
  tree.write("/dev/nvidia1");
  tree.write("/dev/nvidia3");
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 1u) << "2 is absent beside others, 3 is excluded";
  EXPECT_EQ(found.devices[0].uuid, "GPU-1");
  EXPECT_EQ(found.devices[0].gpu, 0) << "CUDA counts what it can open";
  EXPECT_EQ(found.unusable, 2);
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_NE(found.notes[0].find("/dev/nvidia0, /dev/nvidia2 cannot be opened"), std::string::npos);
  EXPECT_NE(found.notes[1].find("excluded 0000:04:00.0"), std::string::npos);
}

TEST(DeviceFilesTest, FindsDevicesBeforeTheirFilesInDevExist) {
  DeviceTree tree;
  tree.nvidia(0, "0000:01:00.0", "GPU-" + std::string(8, '?'));
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.devices[0].uuid, "") << "the driver does not know it yet";
}

TEST(DeviceFilesTest, ReportsADeviceWithoutADriverAsUnusable) {
  DeviceTree tree;
  tree.pci("0000:01:00.0", "0x10de", "0x030200");
  tree.pci("0000:01:00.1", "0x10de", "0x040300");  // Its audio function.
  tree.pci("0000:03:00.0", "0x8086", "0x030000");
  const FoundDevices found = found_in(tree);
  EXPECT_TRUE(found.devices.empty());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_EQ(found.notes[0].find("1 NVIDIA device on the PCI bus without a driver"), 0u);
}

TEST(DeviceFilesTest, FindsADeviceByTheBusAndItsFileInDev) {
  DeviceTree tree;
  tree.pci("0000:01:00.0", "0x10de", "0x030200");
  tree.write("/dev/nvidia0");
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.devices[0].bdf, "0000:01:00.0");
}

TEST(DeviceFilesTest, ListsInstancesInsteadOfTheirGpu) {
  DeviceTree tree;
  tree.nvidia(0, "0000:01:00.0", "GPU-a");
  for (const char* part : {"gi9/ci0", "gi10/ci0", "gi9/ci1"})
    tree.write("/proc/driver/nvidia/capabilities/gpu0/mig/" + std::string(part) + "/access");
  tree.write("/proc/driver/nvidia/capabilities/gpu0/mig/config");
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 3u);
  EXPECT_TRUE(found.devices[0].is_mig);
  EXPECT_EQ(found.devices[1].uuid, "MIG-GPU-a/9/1");
  EXPECT_EQ(found.devices[2].uuid, "MIG-GPU-a/10/0");
}

// As in a sandbox that hides /proc and /sys.
TEST(DeviceFilesTest, FindsADeviceByItsFileInDevAlone) {
  DeviceTree tree;
  tree.write("/dev/nvidia0");
  tree.write("/dev/nvidiactl");
  const DeviceFiles files = read_device_files(tree.root());
  EXPECT_EQ(files.nvidia.nodes, 1);
  EXPECT_FALSE(files.nvidia.has_dxg);
  const FoundDevices found = combine_findings(files, NvmlAnswer{});
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.vendor, &device_vendor(Vendor::kNvidia));
  DeviceTree windows;
  windows.write("/dev/dxg");
  EXPECT_TRUE(read_device_files(windows.root()).nvidia.has_dxg);
}

TEST(DeviceFilesTest, CountsTheUnusableDevicesOfEveryVendor) {
  DeviceTree tree;
  for (const int minor : {0, 1}) {
    const std::string number = std::to_string(minor);
    tree.nvidia(minor, "0000:0" + std::to_string(minor + 1) + ":00.0", "GPU-" + number);
    tree.link("/dev/nvidia" + number, "nvidia" + number);
  }
  EXPECT_EQ(found_in(tree).unusable, 2);
  const std::string bridge = "pci0000:80/0000:80:01.0";
  tree.pci("0000:81:00.0", "0x8086", "0x038000", bridge);
  tree.link("/sys/class/drm/card0/device", "../../../devices/" + bridge + "/0000:81:00.0");
  const FoundDevices found = found_in(tree);
  EXPECT_TRUE(found.devices.empty());
  EXPECT_EQ(found.unusable, 3);
}

// If the kernel's list of the bus has no such device, neither the devices nor /dev are listed.
TEST(DeviceFilesTest, ReadsTheBusListFirst) {
  DeviceTree tree;
  tree.pci("0000:01:00.0", "0x10de", "0x030200");
  tree.write("/proc/bus/pci/devices", "0000\t80860d57\t0\n0008\t1af41045\t0\tvirtio-pci\n");
  tree.write("/dev/nvidia3");
  EXPECT_TRUE(read_device_files(tree.root()).nvidia.bus.empty());
  EXPECT_EQ(read_device_files(tree.root()).nvidia.nodes, 0)
      << "a device without nvidiactl cannot be used";
  std::string others;
  for (int i = 0; i < 5000; ++i) others += "0008\t1af41045\t0\tvirtio-pci\n";
  tree.write("/proc/bus/pci/devices", others + "0100\t10de2330\t0\tnvidia\n");
  EXPECT_EQ(read_device_files(tree.root()).nvidia.bus.size(), 1u);
  EXPECT_EQ(read_device_files(tree.root()).nvidia.nodes, 1);
}

// A container with one of seven instances.
TEST(DeviceFilesTest, CountsInstancesWhoseFilesCanBeOpened) {
  DeviceTree tree;
  tree.nvidia(0, "0000:01:00.0", "GPU-a");
  const std::string mig = "/proc/driver/nvidia/capabilities/gpu0/mig/gi";
  for (int instance = 0; instance < 7; ++instance) {
    const std::string place = mig + std::to_string(instance);
    const auto access = [](int minor) {
      return "DeviceFileMinor: " + std::to_string(minor) + "\nDeviceFileMode: 292\n";
    };
    tree.write(place + "/access", access(10 + instance));
    tree.write(place + "/ci0/access", access(20 + instance));
  }
  EXPECT_EQ(found_in(tree).devices.size(), 7u) << "the files do not exist yet";
  tree.write("/dev/nvidia-caps/nvidia-cap1");
  EXPECT_EQ(found_in(tree).devices.size(), 7u) << "this file is for the administrator";
  tree.write("/dev/nvidia-caps/nvidia-cap13");
  tree.write("/dev/nvidia-caps/nvidia-cap23");
  tree.write("/dev/nvidia-caps/nvidia-cap24");  // Belongs to another GPU instance.
  tree.link("/dev/nvidia-caps/nvidia-cap15", "nvidia-cap15");
  tree.write("/dev/nvidia-caps/nvidia-cap25");
  const FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.devices[0].uuid, "MIG-GPU-a/3/0");
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_EQ(found.notes[0].find("6 MIG instances may not be used here"), 0u);
}

TEST(DeviceFilesTest, FindsAmdDevicesInTheTopology) {
  DeviceTree tree;
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes/";
  tree.write("/dev/kfd");
  tree.write(nodes + "0/properties", "cpu_cores_count 16\nsimd_count 0\nlocation_id 0\n");
  const auto add = [&](const std::string& node, const std::string& location, int render) {
    tree.write(nodes + node + "/properties",
               "cpu_cores_count 0\nsimd_count 304\nvendor_id 4098\nlocation_id " + location +
                   "\ndomain 0\ndrm_render_minor " + std::to_string(render) +
                   "\nunique_id 2102120316588785664\n");
    tree.write(nodes + node + "/gpu_id", location + "\n");
  };
  add("10", "50688", 129);
  add("2", "49408", 128);
  tree.write("/dev/dri/renderD128");
  tree.write("/dev/dri/renderD129");
  FoundDevices found = found_in(tree);
  ASSERT_EQ(found.devices.size(), 2u);
  EXPECT_EQ(found.vendor, &device_vendor(Vendor::kAmd));
  EXPECT_EQ(found.devices[0].bdf, "0000:c1:00.0") << "node 2 before node 10";
  EXPECT_EQ(found.devices[1].bdf, "0000:c6:00.0");
  EXPECT_EQ(found.devices[0].uuid, "GPU-1d2c3b4a59680000");
  EXPECT_TRUE(found.devices[0].users.empty());
  const std::string processes = "/sys/class/kfd/kfd/proc/";
  tree.write(processes + "411/vram_49408", "4096\n");
  tree.write(processes + "411/vram_50688", "0\n");
  tree.write(processes + "412/vram_49408", "0\n");
  tree.write(processes + "412/queues/0/gpuid", "49408\n");
  found = found_in(tree);
  std::sort(found.devices[0].users.begin(), found.devices[0].users.end());
  EXPECT_EQ(found.devices[0].users, (std::vector<int>{411, 412}));
  EXPECT_EQ(found.devices[0].used_bytes, 4096u);
  EXPECT_TRUE(found.devices[1].users.empty());
  std::filesystem::remove(tree.root() + "/dev/dri/renderD128");
  found = found_in(tree);
  EXPECT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.unusable, 1);
}

NvmlAnswer nvml_of(std::initializer_list<NvmlDevice> devices) {
  NvmlAnswer answer;
  answer.is_present = true;
  answer.driver_version = "535";
  answer.devices = devices;
  return answer;
}

TEST(FoundDevicesTest, UsesNvmlAndReportsDifferencesFromTheFiles) {
  DeviceTree tree;
  tree.nvidia(0, "0000:01:00.0", "GPU-a");
  tree.nvidia(1, "0000:02:00.0", "GPU-b");
  tree.write("/dev/nvidia0");
  tree.write("/dev/nvidia1");
  tree.pci("0000:03:00.0", "0x10de", "0x030200");
  NvmlDevice device;
  device.bdf = "0000:01:00.0";
  device.uuid = "GPU-a";
  device.users = {77};
  const FoundDevices found = combine_findings(read_device_files(tree.root()), nvml_of({device}));
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.devices[0].users, std::vector<int>{77});
  EXPECT_EQ(found.devices[0].cores, "0-15") << "from the bus";
  EXPECT_EQ(found.source, "NVML 535");
  ASSERT_EQ(found.disagreements.size(), 2u);
  EXPECT_EQ(found.disagreements[0].find("NVML does not know 0000:02:00.0"), 0u);
  EXPECT_EQ(found.disagreements[1].find("the PCI bus has 0000:03:00.0"), 0u);
}

TEST(FoundDevicesTest, OmitsAGpuInMigModeWithoutInstances) {
  NvmlDevice device;
  device.bdf = "0000:01:00.0";
  device.is_mig_enabled = true;
  const FoundDevices found = combine_findings(DeviceFiles{}, nvml_of({device}));
  EXPECT_TRUE(found.devices.empty());
  ASSERT_EQ(found.disagreements.size(), 1u);
}

TEST(FoundDevicesTest, NormalizesAddresses) {
  EXPECT_EQ(normal_bdf("00000000:0F:00.0"), "0000:0f:00.0");
  EXPECT_EQ(normal_bdf("0000:0f:00.0"), "0000:0f:00.0");
  EXPECT_EQ(normal_bdf("00010000:01:00.0"), "10000:01:00.0") << "a domain above 0xffff";
}

TEST(CoreFilesTest, ReadsCoresWithTheirThreadsNodesAndCaches) {
  DeviceTree tree;
  for (int processor = 0; processor < 8; ++processor) {
    const std::string place = "/sys/devices/system/cpu/cpu" + std::to_string(processor);
    const std::string core = std::to_string(processor % 4);
    tree.write(place + "/topology/thread_siblings_list",
               core + "," + std::to_string(processor % 4 + 4) + "\n");
    tree.write(place + "/topology/physical_package_id", processor % 4 < 2 ? "0\n" : "1\n");
    tree.write(place + "/cache/index0/level", "1\n");
    tree.write(place + "/cache/index1/level", "3\n");
    tree.write(place + "/cache/index1/shared_cpu_list",
               processor % 4 < 2 ? "0-1,4-5\n" : "2-3,6-7\n");
  }
  tree.write("/sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  tree.write("/sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  tree.write("/proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-2,4\n");
  const CoreList allowed = allowed_cores(tree.root());
  EXPECT_EQ(allowed, (CoreList{0, 1, 2, 4}));
  const std::vector<Core> cores = read_cores(tree.root(), allowed);
  const std::vector<Core> expected = {{{0, 4}, 0, 0, 0}, {{1}, 0, 0, 0}, {{2}, 1, 1, 2}};
  EXPECT_EQ(cores, expected);
}

// The files of a GH200, as its kernel and driver show them: no model names in /proc/cpuinfo, no
// nvidia-smi, memory of the GPU as NUMA nodes without processors, one thread per core, and a third
// level of cache for all 72 cores.
class GraceHost {
 public:
  GraceHost() {
    std::string cpuinfo;
    for (int processor = 0; processor < 72; ++processor) {
      const std::string number = std::to_string(processor);
      cpuinfo += "processor\t: " + number +
                 "\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes sha1 crc32 atomics "
                 "fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp sve\nCPU implementer\t: 0x41\n"
                 "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
                 "CPU revision\t: 0\n\n";
      const std::string place = "/sys/devices/system/cpu/cpu" + number;
      tree.write(place + "/topology/thread_siblings_list", number + "\n");
      tree.write(place + "/topology/physical_package_id", "0\n");
      tree.write(place + "/cache/index0/level", "1\n");
      tree.write(place + "/cache/index1/level", "1\n");
      tree.write(place + "/cache/index2/level", "2\n");
      tree.write(place + "/cache/index3/level", "3\n");
      tree.write(place + "/cache/index3/shared_cpu_list", "0-71\n");
    }
    tree.write("/proc/cpuinfo", cpuinfo);
    tree.write("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-71\n");
    tree.write("/sys/devices/system/node/node0/cpulist", "0-71\n");
    for (int node = 1; node <= 8; ++node)
      tree.write("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist", "\n");
    tree.pci("0009:01:00.0", "0x10de", "0x030200", "pci0009:00/0009:00:00.0", "0-71", 0);
    tree.write("/proc/driver/nvidia/gpus/0009:01:00.0/information",
               "Model: \t\t NVIDIA GH200 480GB\nIRQ:   \t\t 363\n"
               "GPU UUID: \t GPU-8c1e8b2e-6f0e-8f1b-7a5d-0b6a3c9c5d11\n"
               "Video BIOS: \t 96.00.84.00.02\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
               "DMA Mask: \t 0xfffffffffffff\nBus Location: \t 0009:01:00.0\n"
               "Device Minor: \t 0\nGPU Firmware: \t 550.54.15\nGPU Excluded:\t No\n");
    for (const char* node : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}) tree.write(node);
  }
  DeviceTree tree;
};

TEST(DeviceFilesTest, FindsTheGpuOfAGraceHost) {
  const GraceHost grace;
  const FoundDevices found = found_in(grace.tree);
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.vendor, &device_vendor(Vendor::kNvidia));
  EXPECT_EQ(found.devices[0].bdf, "0009:01:00.0");
  EXPECT_EQ(found.devices[0].model, "NVIDIA GH200 480GB");
  EXPECT_EQ(found.devices[0].uuid, "GPU-8c1e8b2e-6f0e-8f1b-7a5d-0b6a3c9c5d11");
  EXPECT_EQ(found.devices[0].cores, "0-71");
  EXPECT_EQ(found.devices[0].numa_node, 0);
  EXPECT_EQ(found.unusable, 0);
  EXPECT_TRUE(found.notes.empty());
  EXPECT_TRUE(found.disagreements.empty());
}

TEST(CoreFilesTest, ReadsTheCoresOfAGraceHost) {
  const GraceHost grace;
  const CoreList allowed = allowed_cores(grace.tree.root());
  ASSERT_EQ(allowed.size(), 72u);
  const std::vector<Core> cores = read_cores(grace.tree.root(), allowed);
  ASSERT_EQ(cores.size(), 72u);
  for (int number = 0; number < 72; ++number)
    EXPECT_EQ(cores[static_cast<std::size_t>(number)], (Core{{number}, 0, 0, 0})) << number;
}

TEST(CoreFilesTest, UsesItsOwnAffinityWithoutARoot) {
  EXPECT_FALSE(allowed_cores("").empty());
  EXPECT_FALSE(read_cores("", allowed_cores("")).empty());
}

}  // namespace
}  // namespace ivy
