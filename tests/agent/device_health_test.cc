// SPDX-License-Identifier: Apache-2.0
// Faults of devices: the kernel's log, counters and ports, and ivy-probe's report of them.
#include "agent/devices/device_health.h"

#include <gtest/gtest.h>

#include "agent/devices/fabric_ports.h"
#include "agent/devices/kernel_log.h"
#include "agent/devices/watch_answer.h"
#include "proto/contract/text.h"
#include "tests/support/device_tree.h"

namespace ivy {
namespace {

constexpr const char* kLost =
    "3,817,5051922331,-;NVRM: Xid (PCI:0000:4D:00): 79, pid='<unknown>', name=<unknown>, GPU has "
    "fallen off the bus.";

std::vector<std::string> texts(const std::vector<DeviceFinding>& findings) {
  std::vector<std::string> lines;
  for (const DeviceFinding& finding : findings)
    lines.push_back(finding.device + ": " + finding.text);
  return lines;
}

TEST(KernelLogTest, ReadsXids) {
  const auto lost = parse_xid_record(kLost);
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->bdf, "0000:4d:00");
  EXPECT_EQ(lost->number, 79u);
  EXPECT_EQ(lost->at_ns, 5051922331'000u);
  EXPECT_EQ(lost->process, "");
  const auto fault = parse_xid_record(
      "4,9,17,-,caller=T12;NVRM: Xid (PCI:0000:07:00): 31, pid=4711, name=python3, Ch 00000008");
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->process, "pid 4711 (python3)");
  const auto old = parse_xid_record("4,9,17,-;NVRM: Xid (PCI:0000:07:00): 31, Ch 00000008");
  EXPECT_TRUE(old.has_value() && old->process.empty());
  const auto fabric = parse_xid_record(
      "3,9,17,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress");
  ASSERT_TRUE(fabric.has_value());
  EXPECT_TRUE(fabric->is_switch);
  for (const char* other :
       {"", "x", "4,9,17,-;usb 1-1: new device", "4,9,a,-;NVRM: Xid (PCI:0000:07:00): 31, x",
        "4,9,17,-;NVRM: Xid (PCI:0000:07:00", "4,9,17,-;NVRM: Xid (PCI:0000:07:00): many, x",
        "12,9,17,-;python3: NVRM: Xid (PCI:0000:07:00): 79, a user's own line"})
    EXPECT_FALSE(parse_xid_record(other).has_value()) << other;
}

TEST(KernelLogTest, ReportsOnlyNewLines) {
  DeviceTree tree;
  tree.write("/dev/kmsg", std::string(kLost) + "\n");
  KernelLog log(tree.root());
  EXPECT_TRUE(log.read_new().empty());
  tree.write("/dev/kmsg", std::string(kLost) + "\n" + kLost + "\n SUBSYSTEM=pci\n");
  EXPECT_EQ(log.read_new().size(), 1u);
  EXPECT_TRUE(log.read_new().empty());
  EXPECT_FALSE(KernelLog("/nowhere").is_readable());
}

TEST(KernelLogTest, ReadsBeyondManyOtherLines) {
  DeviceTree tree;
  tree.write("/dev/kmsg");
  KernelLog log(tree.root());
  std::string lines;
  while (lines.size() < 2u << 20) lines += "6,9,17,-;usb 1-1: new high-speed USB device\n";
  tree.write("/dev/kmsg", lines + kLost + "\n");
  EXPECT_EQ(log.read_new().size(), 1u);
}

TEST(DeviceHealthTest, ReportsXidsOfVisibleGpusOnce) {
  const std::vector<GpuHealth> gpus = {{3, "0000:4d:00.0", false, -1, {}}};
  const XidRecord from_log = {"0000:4d:00", 79, 7, "pid 5 (x)", false};
  const XidRecord from_nvml = {"0000:4d:00.0", 79, 9, "", false};
  const XidRecord another = {"0000:4d:00.0", 999, 3, "", false};
  const XidRecord foreign = {"0000:9d:00", 79, 1, "", false};
  const auto findings = xid_findings({from_log, from_nvml, another, foreign}, gpus);
  EXPECT_EQ(texts(findings), (std::vector<std::string>{"GPU 3: Xid 999",
                                                       "GPU 3: Xid 79, fallen off the bus, "
                                                       "pid 5 (x)"}));
  EXPECT_EQ(findings[1].bdf, "0000:4d:00.0");
  EXPECT_EQ(findings[1].at_ns, 7u);
}

TEST(DeviceHealthTest, ReportsOnlyCountersThatHaveGrown) {
  HostHealth before;
  before.gpus = {{0, "a", false, 0, {{"ECC error", "ECC errors", 2}, {"replay", "replays", 7}}},
                 {1, "b", false, -1, {}},
                 {2, "c", false, 1, {}}};
  before.ports = {{"mlx5_0 port 1", "ACTIVE", {{"link failure", "link failures", 1}}},
                  {"mlx5_1 port 1", "ACTIVE", {}}};
  EXPECT_EQ(texts(health_changes(before, before)),
            std::vector<std::string>{"GPU 2: needs a reset (nvidia-smi --gpu-reset), as before"});
  HostHealth after = before;
  after.gpus[0].counters[0].value = 3;
  after.gpus[0].recovery_action = 2;
  after.gpus.pop_back();
  after.gpus[1].is_lost = true;
  after.ports[0].state = "DOWN";
  after.ports[0].counters[0].value = 3;
  after.ports.pop_back();
  EXPECT_EQ(texts(health_changes(before, after)),
            (std::vector<std::string>{
                "GPU 0: needs a reboot of its host", "GPU 0: 1 ECC error",
                "GPU 1: NVML can no longer reach it", "GPU 2: NVML can no longer reach it",
                "mlx5_0 port 1: went from ACTIVE to DOWN", "mlx5_0 port 1: 2 link failures",
                "mlx5_1 port 1: has disappeared"}));
}

TEST(DeviceHealthTest, ReadsPorts) {
  DeviceTree tree;
  EXPECT_FALSE(has_ports(tree.root()));
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  tree.write(port + "/state", "4: ACTIVE\n");
  tree.write(port + "/counters/link_downed", "2\n");
  tree.write(port + "/counters/symbol_error", "no number\n");
  ASSERT_TRUE(has_ports(tree.root()));
  const std::vector<PortHealth> ports = read_ports(tree.root());
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_EQ(ports[0].name, "mlx5_0 port 1");
  EXPECT_EQ(ports[0].state, "ACTIVE");
  ASSERT_EQ(ports[0].counters.size(), 1u);
  EXPECT_EQ(ports[0].counters[0].value, 2u);
}

TEST(WatchAnswerTest, ReadsWhatItWrites) {
  WatchAnswer answer;
  const DeviceFinding finding = {"GPU 3", "0000:4d:00.0", 7, "Xid 79, fallen\toff"};
  const HeldMemory held = {"GPU 0", "GPU-a", 5, 87, {{77, 4, "python3"}, {78, 0, ""}}};
  std::string text = "a library's line\nivy ready\n" + finding_line(finding) + held_lines(held) +
                     "ivy finding\tx\nivy holder\tnobody\t1\t1\tx\nivy end\n";
  for (std::string_view left = text; !left.empty();) take_watch_line(take_part(left, '\n'), answer);
  EXPECT_TRUE(answer.is_ready && answer.is_complete);
  ASSERT_EQ(answer.findings.size(), 1u);
  EXPECT_EQ(answer.findings[0].text, "Xid 79, fallen off");
  EXPECT_EQ(answer.findings[0].at_ns, 7u);
  ASSERT_EQ(answer.held.size(), 1u);
  EXPECT_EQ(answer.held[0].busy_percent, 87);
  ASSERT_EQ(answer.held[0].holders.size(), 2u);
  EXPECT_EQ(answer.held[0].holders[0].name, "python3");
  EXPECT_EQ(answer.held[0].holders[1].bytes, 0u);
}

}  // namespace
}  // namespace ivy
