// SPDX-License-Identifier: Apache-2.0
// CUDA_VISIBLE_DEVICES and similar variables, as a table.
#include "agent/devices/device_mask.h"

#include <gtest/gtest.h>

#include "agent/devices/device_facts.h"

namespace ivy {
namespace {

// NVIDIA's whole GPUs with these UUIDs.
FoundDevices gpus(std::initializer_list<const char*> uuids) {
  FoundDevices found;
  found.vendor = &device_vendor(Vendor::kNvidia);
  for (const char* uuid : uuids) {
    FoundDevice device;
    device.gpu = static_cast<int>(found.devices.size());
    device.uuid = uuid;
    found.devices.push_back(device);
  }
  return found;
}
FoundDevices four() { return gpus({"GPU-aa11", "GPU-ab22", "GPU-cc33", "GPU-dd44"}); }

FoundDevices instances() {
  FoundDevices found = gpus({"GPU-aa11", "MIG-11", "MIG-12"});
  found.devices[1].is_mig = found.devices[2].is_mig = true;
  found.devices[2].gpu = 1;
  return found;
}

// Returns for instance "2:GPU-cc 0:0": each visible device with the entry of its own mask, then the
// error.
std::string shown(const MaskedDevices& masked) {
  std::string text;
  for (const VisibleDevice& visible : masked.visible)
    text += (text.empty() ? "" : " ") +
            (visible.device ? std::to_string(*visible.device) : std::string("?")) + ":" +
            visible.entry;
  return text + (masked.error.empty() ? "" : " | " + masked.error);
}

TEST(DeviceMaskTest, SelectsDevicesAndReportsErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"0,1,2,3", "0:0 1:1 2:2 3:3"},
      {"2,0", "2:2 0:0"},
      {" 2 , 0 ", "2:2 0:0"},
      {"GPU-cc33", "2:GPU-cc33"},
      {"GPU-c,1", "2:GPU-c 1:1"},
      {"GPU-a", " | GPU-a matches several devices"},
      {"GPU-aa,GPU-ab", "0:GPU-aa 1:GPU-ab"},
      {"GPU-ee", " | there is no device GPU-ee"},
      {"", ""},
      {"-1", ""},
      {"-1,0", ""},
      {"NoDevFiles", ""},
      {"1,-1,2", "1:1 | \"-1\" is neither a number nor a UUID"},
      {"4", " | there is no device 4, only 0-3"},
      {"1,4,2", "1:1 | there is no device 4, only 0-3"},
      {"1,,2", "1:1 | an entry is empty"},
      {"1,1", "1:1 | 1 is listed twice"},
      {"1,GPU-ab22", "1:1 | GPU-ab22 is listed twice"},
      {"all", " | \"all\" is neither a number nor a UUID"},
      {"99999999999999999999", " | \"99999999999999999999\" is neither a number nor a UUID"}};
  for (const auto& [mask, expected] : cases)
    EXPECT_EQ(shown(apply_mask(four(), std::string(mask))), expected) << mask;
  EXPECT_EQ(shown(apply_mask(four(), std::nullopt)), "0:0 1:1 2:2 3:3");
}

TEST(DeviceMaskTest, SelectsInstances) {
  EXPECT_EQ(shown(apply_mask(instances(), std::nullopt)), "0:0 1:MIG-11 2:MIG-12");
  EXPECT_EQ(shown(apply_mask(instances(), "MIG-12,MIG-11")), "2:MIG-12 1:MIG-11");
  EXPECT_EQ(shown(apply_mask(instances(), "MIG-1")), " | MIG-1 matches several devices");
  EXPECT_EQ(shown(apply_mask(instances(), "1,0")), "1:MIG-11 0:0")
      << "a GPU's number selects its first instance";
}

TEST(DeviceMaskTest, AcceptsAUuidThatCannotBeChecked) {
  EXPECT_EQ(shown(apply_mask(gpus({"", ""}), "GPU-77,1")), "?:GPU-77 1:1");
  FoundDevices by_files = gpus({"MIG-GPU-aa/1/0"});
  by_files.devices[0].is_mig = true;
  EXPECT_EQ(shown(apply_mask(by_files, "MIG-1a2b3c4d")), "?:MIG-1a2b3c4d");
}

TEST(DeviceMaskTest, AppliesBothMasksOfAmd) {
  EXPECT_EQ(shown(apply_masks(four(), "3,1", std::nullopt)), "3:0 1:1");
  EXPECT_EQ(shown(apply_masks(four(), "3,1", "1")), "1:1");
  EXPECT_EQ(shown(apply_masks(four(), "GPU-dd44", "0,1")), "3:0 | there is no device 1, only 0");
  EXPECT_EQ(shown(apply_masks(four(), std::nullopt, "2")), "2:2");
}

HostFacts facts_of(const FoundDevices& found, const Environment& environment,
                   const Environment& masks = {}) {
  DeviceFindings findings;
  findings.found = found;
  findings.allowed = {0, 1, 2, 3};
  HostFacts facts;
  set_device_facts(findings, environment, masks, facts);
  return facts;
}

TEST(DeviceFactsTest, EncodesTheFactsForTheLauncher) {
  FoundDevices found = four();
  found.devices[2].cores = "2-9";
  found.devices[2].users = {77};
  const HostFacts facts =
      facts_of(found, {{"CUDA_VISIBLE_DEVICES", "2,1"}, {"SLURM_GPUS_PER_TASK", "2"}});
  EXPECT_EQ(facts.accelerators(), 2u);
  EXPECT_EQ(facts.accelerator_source(), "nvidia");
  EXPECT_EQ(facts.devices(0).uuid(), "GPU-cc33");
  EXPECT_EQ(facts.devices(0).cores(), "2-3") << "only the allowed cores";
  EXPECT_EQ(facts.devices(0).users(0), 77);
  EXPECT_EQ(facts.device_view().present(), 4u);
  EXPECT_EQ(facts.device_view().mask(), "CUDA_VISIBLE_DEVICES=2,1");
  EXPECT_EQ(facts.device_view().hidden_by(), "SLURM_GPUS_PER_TASK=2");
  EXPECT_EQ(
      facts_of(found, {{"SLURM_TRES_PER_TASK", "cpu:4,gres/gpu:1"}}).device_view().hidden_by(),
      "SLURM_TRES_PER_TASK=cpu:4,gres/gpu:1");
  EXPECT_EQ(facts_of(found, {{"SLURM_TRES_PER_TASK", "cpu:4"}}).device_view().hidden_by(), "");
  EXPECT_EQ(facts_of(found, {{"CUDA_VISIBLE_DEVICES", "2,1"}}, {{"CUDA_VISIBLE_DEVICES", "0"}})
                .devices(0)
                .uuid(),
            "GPU-aa11")
      << "-x counts instead";
  EXPECT_FALSE(facts_of(FoundDevices{}, {{"CUDA_VISIBLE_DEVICES", "0"}}).has_device_view())
      << "a mask on a host without accelerators is not reported";
}

// Slurm's other variables show whether the mask is Slurm's; a user who lists other devices has set
// the mask.
TEST(DeviceFactsTest, AttributesAMaskToSlurmIfItEqualsSlurmsMask) {
  struct Case {
    const char* vendor;
    bool is_slurms;
    Environment environment;
    Environment masks = {};
  };
  const EnvVariable job = {"SLURM_JOB_ID", "7"};
  const EnvVariable mask = {"CUDA_VISIBLE_DEVICES", "0,1"};
  const Case cases[] = {
      {"nvidia", false, {mask}},
      {"nvidia", false, {job, mask}},
      {"nvidia", false, {job}},
      {"nvidia", true, {job, mask, {"GPU_DEVICE_ORDINAL", "0,1"}}},
      {"nvidia", false, {mask, {"GPU_DEVICE_ORDINAL", "0,1"}}},
      {"nvidia", false, {job, mask, {"GPU_DEVICE_ORDINAL", "0,1,2"}}},
      {"nvidia", false, {job, mask, {"GPU_DEVICE_ORDINAL", "2,3"}, {"SLURM_STEP_GPUS", "2,3"}}},
      // If Slurm finds NVIDIA's devices by NVML it sets no other mask; with device groups it counts
      // from 0.
      {"nvidia", true, {job, mask, {"SLURM_STEP_GPUS", "4,6"}}},
      {"nvidia", true, {job, mask, {"SLURM_JOB_GPUS", "4,6"}}},
      {"nvidia", false, {job, mask, {"SLURM_JOB_GPUS", "4,5,6,7"}}},
      {"nvidia", false, {job, mask, {"SLURM_JOB_GPUS", "4,6"}}, {mask}},
      {"nvidia", true, {job, mask, {"SLURM_GPUS_PER_TASK", "2"}}},
      {"amd", true, {job, {"ROCR_VISIBLE_DEVICES", "0,1"}, {"SLURM_STEP_GPUS", "0,1"}}},
      {"amd",
       false,
       {job,
        {"ROCR_VISIBLE_DEVICES", "0,1"},
        {"HIP_VISIBLE_DEVICES", "0"},
        {"SLURM_STEP_GPUS", "0,1"}}},
  };
  for (const Case& test : cases) {
    FoundDevices found = four();
    found.vendor = find_device_vendor(test.vendor);
    EXPECT_EQ(facts_of(found, test.environment, test.masks).device_view().is_slurms_mask(),
              test.is_slurms)
        << "case " << &test - cases;
  }
}

TEST(DeviceFactsTest, WritesTheMaskThatWasSetForAmd) {
  FoundDevices found = four();
  found.vendor = &device_vendor(Vendor::kAmd);
  EXPECT_EQ(facts_of(found, {}).device_view().mask_variable(), "HIP_VISIBLE_DEVICES");
  EXPECT_EQ(facts_of(found, {{"CUDA_VISIBLE_DEVICES", "1"}}).device_view().mask_variable(),
            "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(facts_of(found, {{"ROCR_VISIBLE_DEVICES", "1,2"}, {"HIP_VISIBLE_DEVICES", "1"}})
                .device_view()
                .mask(),
            "ROCR_VISIBLE_DEVICES=1,2 HIP_VISIBLE_DEVICES=1");
}

TEST(DeviceMaskTest, TreatsTilesOfIntelAsDevicesByDefault) {
  FoundDevices found;
  found.vendor = &device_vendor(Vendor::kIntel);
  for (int tile = 0; tile < 4; ++tile) {
    FoundDevice device;
    device.gpu = tile;
    device.bdf = tile < 2 ? "0000:1a:00.0" : "0000:9a:00.0";
    found.devices.push_back(device);
  }
  const HostFacts all = facts_of(found, {});
  EXPECT_EQ(all.accelerators(), 4u);
  EXPECT_EQ(all.device_view().mask_variable(), "ZE_AFFINITY_MASK");
  EXPECT_EQ(facts_of(found, {{"ZE_AFFINITY_MASK", "2,3"}}).devices(0).bdf(), "0000:9a:00.0");
  EXPECT_EQ(facts_of(found, {{"CUDA_VISIBLE_DEVICES", "0"}}).accelerators(), 4u);
  const EnvVariable whole = {"ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"};
  EXPECT_EQ(facts_of(found, {whole}).accelerators(), 2u);
  const HostFacts tiles = facts_of(found, {whole, {"ZE_AFFINITY_MASK", "1.0,1.1"}});
  ASSERT_EQ(tiles.accelerators(), 2u) << tiles.device_view().mask_error();
  EXPECT_EQ(tiles.devices(1).mask_entry(), "1.1");
  EXPECT_EQ(tiles.devices(1).bdf(), "0000:9a:00.0");
}

TEST(DeviceMaskTest, ReportsSlurmsSwitchesWithoutTheNode) {
  const EnvVariable address = {"SLURM_TOPOLOGY_ADDR", "core1.leaf2.node07"};
  EXPECT_EQ(facts_of(FoundDevices{}, {address}).topology_address(), "core1.leaf2");
  EXPECT_EQ(facts_of(FoundDevices{}, {address, {"SLURM_TOPOLOGY_ADDR_PATTERN", "node"}})
                .topology_address(),
            "");
  EXPECT_EQ(facts_of(FoundDevices{}, {{"SLURM_TOPOLOGY_ADDR", "node07"}}).topology_address(), "");
}

}  // namespace
}  // namespace ivy
