// SPDX-License-Identifier: Apache-2.0
// Accelerators in the plan: their assignment, rejections, and the printed text.
#include "launcher/plan/device_plan.h"

#include <gtest/gtest.h>

#include "launcher/plan/plan.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

struct PlanInput {
  explicit PlanInput(int accelerators, int hosts = 1) {
    options.command = {"train"};
    for (int i = 0; i < hosts; ++i) {
      HostAnswer answer;
      answer.name = "n" + std::to_string(i);
      answer.transport = Transport::kLocal;
      answer.facts.set_cores(8);
      answer.facts.set_program_path("/train");
      answer.facts.set_reserved_port(1);
      answer.facts.set_allowed_cores("0-63");
      give(answer.facts, accelerators);
      answers.push_back(std::move(answer));
      Host host;
      host.name = "n" + std::to_string(i);
      options.hosts.push_back(host);
    }
  }
  static void give(HostFacts& facts, int accelerators) {
    facts.set_accelerators(static_cast<std::uint32_t>(accelerators));
    facts.set_accelerator_source("nvidia");
    facts.mutable_device_view()->set_present(static_cast<std::uint32_t>(accelerators));
    facts.mutable_device_view()->set_mask_variable("CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < accelerators; ++i) {
      Accelerator& device = *facts.add_devices();
      device.set_mask_entry(std::to_string(i));
      device.set_numa_node(i / 2);
      device.set_cores(std::to_string(16 * (i / 2)) + "-" + std::to_string(16 * (i / 2) + 15));
    }
  }
  void use_fake_hosts(int hosts) {
    const HostAnswer one = answers.front();
    options.hosts = fake_hosts(hosts);
    answers.assign(static_cast<std::size_t>(hosts), one);
  }
  void per_host(int number) {
    options.per_host.kind = PerHost::Kind::kNumber;
    options.per_host.number = number;
    options.per_host.written = true;
  }
  JobPlan plan() {
    rejections.clear();
    return make_plan(options, "job", answers, rejections).value();
  }
  // Returns the devices of each worker, for instance "0 1 | 2 3".
  std::string devices() {
    const JobPlan made = plan();
    std::string text;
    for (const PlannedHost& host : made.hosts) {
      for (const PlannedWorker& worker : host.workers) {
        text += text.empty() ? "" : " |";
        for (const int place : worker.devices)
          text += " " + std::to_string(host.devices[static_cast<std::size_t>(place)]);
      }
    }
    return text;
  }
  Diagnostic rejection() {
    plan();
    EXPECT_EQ(rejections.size(), 1u);
    return rejections.empty() ? Diagnostic{} : rejections.front();
  }
  Diagnostic warning() {
    const JobPlan made = plan();
    EXPECT_EQ(made.warnings.size(), 1u);
    return made.warnings.empty() ? Diagnostic{} : made.warnings.front();
  }

  Options options;
  std::vector<HostAnswer> answers;
  std::vector<Diagnostic> rejections;
};

TEST(DevicePlanTest, AssignsOneOrSeveralOrSharedDevices) {
  PlanInput input(4);
  EXPECT_EQ(input.devices(), " 0 | 1 | 2 | 3");
  input.options.gpus_per_proc = 2;
  EXPECT_EQ(input.devices(), " 0 1 | 2 3");
  EXPECT_NE(plan_line(input.plan()).find("one per 2 accelerators"), std::string::npos);
  input.options.gpus_per_proc.reset();
  input.per_host(6);
  EXPECT_EQ(input.devices(), " 0 | 1 | 2 | 3 | 0 | 1");
  EXPECT_NE(plan_line(input.plan()).find("6 workers share 4 accelerators"), std::string::npos);
  EXPECT_TRUE(input.rejections.empty());
  EXPECT_TRUE(input.plan().warnings.empty()) << "the plan line reports it";
}

TEST(DevicePlanTest, NamesTheHostsThatHaveFewerAccelerators) {
  PlanInput input(8, 3);
  const auto words = [&] { return input.plan().device_text; };
  EXPECT_EQ(words().find("accelerators differ"), std::string::npos) << words();
  input.answers[1].facts.mutable_devices()->RemoveLast();
  input.answers[1].facts.set_accelerators(7);
  input.answers[1].facts.mutable_device_view()->set_present(7);
  EXPECT_NE(words().find("accelerators differ: 8 on n[0,2], 7 on n1"), std::string::npos)
      << words();
  // One of its devices cannot be used.
  input.answers[1].facts.mutable_device_view()->set_unusable(1);
  EXPECT_NE(words().find("accelerators differ: 8 on n[0,2], 7 of 8 on n1"), std::string::npos)
      << words();
}

TEST(DevicePlanTest, DividesDevicesBetweenFakeHosts) {
  PlanInput divided(5);
  divided.use_fake_hosts(2);
  EXPECT_EQ(divided.devices(), " 0 | 1 | 2 | 3 | 4");
  EXPECT_TRUE(divided.plan().hosts[1].has_part_of_devices);
  PlanInput shared(2);
  shared.use_fake_hosts(3);
  EXPECT_EQ(shared.devices(), " 0 | 1 | 0");
  EXPECT_NE(plan_line(shared.plan()).find("3 simulated hosts share 2 accelerators"),
            std::string::npos);
}

TEST(DevicePlanTest, ChoosesWhichWorkersSeeOnlyTheirDevices) {
  using enum VisibleChoice;
  using enum Profile;
  struct Case {
    VisibleChoice visible;
    Profile profile;
    bool several;
    bool mig;
    bool own;
  };
  const Case cases[] = {{kAuto, kTorch, false, false, false}, {kAuto, kJax, false, false, false},
                        {kAuto, kNumpy, false, false, true},  {kAuto, kMpi, false, false, true},
                        {kAuto, kTorch, true, false, true},   {kAuto, kJax, true, false, false},
                        {kAll, kNumpy, true, false, false},   {kOwn, kTorch, false, false, true},
                        {kAll, kTorch, false, true, true}};
  for (const Case& test : cases) {
    PlanInput input(4);
    input.options.visible = test.visible;
    input.options.profile = test.profile;
    if (test.several) input.options.gpus_per_proc = 1;
    input.answers[0].facts.mutable_devices(3)->set_is_mig(test.mig);
    EXPECT_EQ(input.plan().hosts[0].sees_own, test.own) << &test - cases;
  }
  PlanInput none(0);
  none.options.profile = kNumpy;
  EXPECT_FALSE(none.plan().hosts[0].sees_own) << "there is nothing to see";
}

TEST(DevicePlanTest, RejectsMoreWorkersThanDevicesIfDevicesWereRequested) {
  PlanInput input(4, 3);
  input.per_host(6);
  input.options.visible = VisibleChoice::kOwn;
  Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.id, "IVY-P011");
  EXPECT_EQ(rejection.exit_code, kExitRejected);
  EXPECT_EQ(rejection.what, "6 workers on n0 need 6 accelerators, 4 are visible");
  EXPECT_EQ(rejection.where, "n[0-2]") << "hosts with the same problem share a message";
  EXPECT_NE(rejection.fix.find("--nproc-per-node 4"), std::string::npos);
  input.options.oversubscribe = true;
  input.plan();
  EXPECT_TRUE(input.rejections.empty());
  PlanInput several(4);
  several.per_host(2);
  several.options.gpus_per_proc = 3;
  EXPECT_EQ(several.rejection().what,
            "2 workers on n0 with 3 accelerators each need 6, 4 are visible");
  PlanInput none(0);
  none.options.gpus_per_proc = 2;
  EXPECT_NE(none.rejection().fix.find("without accelerators"), std::string::npos);
  EXPECT_EQ(none.rejection().what,
            "1 worker on n0 with 2 accelerators each needs 2, none is visible");
}

TEST(DevicePlanTest, NamesAMaskIfItIsTheReason) {
  PlanInput input(2);
  input.per_host(3);
  DeviceView& view = *input.answers[0].facts.mutable_device_view();
  view.set_present(8);
  view.set_mask("CUDA_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(input.warning().cause, "CUDA_VISIBLE_DEVICES=0,1 hides 6 of 8 accelerators");
  input.options.visible = VisibleChoice::kOwn;
  EXPECT_EQ(input.rejection().cause, "CUDA_VISIBLE_DEVICES=0,1 hides 6 of 8 accelerators");
  view.set_hidden_by("SLURM_GPUS_PER_TASK=1");
  EXPECT_NE(input.rejection().fix.find("--gpus-per-node=8 --ntasks-per-node=1"), std::string::npos);
}

// The devices that Slurm's mask hides belong to other jobs: only Slurm can assign more.
TEST(DevicePlanTest, SuggestsRequestingMoreDevicesFromSlurm) {
  struct Case {
    int workers;
    int each;  // 0: not given.
    bool is_strict;
    const char* advice;
    std::uint32_t unusable;
  };
  const Case cases[] = {
      {3, 0, true, "ask Slurm for --gpus-per-node=3, or --gres=gpu:3", 0},
      {3, 0, false, "ask Slurm for --gpus-per-node=3, or --gres=gpu:3", 0},
      {2, 2, true, "ask Slurm for --gpus-per-node=4, or --gres=gpu:4", 0},
      {12, 0, true, "ask Slurm for --gpus-per-node=8, or --gres=gpu:8", 0},
      {12, 0, true, "ask Slurm for --gpus-per-node=10, or --gres=gpu:10", 2},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(&test - cases);
    PlanInput input(2);
    input.per_host(test.workers);
    if (test.each > 0) input.options.gpus_per_proc = test.each;
    if (test.is_strict) input.options.visible = VisibleChoice::kOwn;
    DeviceView& view = *input.answers[0].facts.mutable_device_view();
    view.set_present(8);
    view.set_unusable(test.unusable);
    view.set_mask("CUDA_VISIBLE_DEVICES=0,1");
    const auto fix = [&] { return (test.is_strict ? input.rejection() : input.warning()).fix; };
    EXPECT_NE(fix().find("unset CUDA_VISIBLE_DEVICES"), std::string::npos) << fix();
    EXPECT_EQ(fix().find("Slurm"), std::string::npos) << fix();
    view.set_is_slurms_mask(true);
    EXPECT_EQ(fix().find("unset"), std::string::npos) << fix();
    EXPECT_NE(fix().find(test.advice), std::string::npos) << fix();
    if (!test.is_strict) continue;
    // If Slurm assigns devices per task, the advice is different.
    view.set_hidden_by("SLURM_GPUS_PER_TASK=1");
    EXPECT_EQ(fix().find("unset"), std::string::npos) << fix();
    EXPECT_EQ(fix().find("ask Slurm for"), std::string::npos) << fix();
    EXPECT_NE(fix().find("instead of --gpus-per-task"), std::string::npos) << fix();
  }
  // The job already has all devices of the host.
  PlanInput all(2);
  all.per_host(3);
  all.options.visible = VisibleChoice::kOwn;
  all.answers[0].facts.mutable_device_view()->set_mask("CUDA_VISIBLE_DEVICES=0,1");
  all.answers[0].facts.mutable_device_view()->set_is_slurms_mask(true);
  EXPECT_EQ(all.rejection().fix.find("Slurm"), std::string::npos) << all.rejection().fix;
}

TEST(DevicePlanTest, HandlesMasksWithoutDevices) {
  PlanInput none(0);
  DeviceView& view = *none.answers[0].facts.mutable_device_view();
  view.set_present(4);
  view.set_mask("CUDA_VISIBLE_DEVICES=9");
  view.set_mask_error("there is no device 9, only 0-3");
  const Diagnostic rejection = none.rejection();
  EXPECT_EQ(rejection.id, "IVY-P017");
  EXPECT_EQ(rejection.what, "CUDA_VISIBLE_DEVICES=9 lists no accelerator");
  PlanInput some(1);
  *some.answers[0].facts.mutable_device_view() = view;
  EXPECT_EQ(some.warning().id, "IVY-P017");
  EXPECT_EQ(some.warning().what,
            "CUDA_VISIBLE_DEVICES=9 leaves 1 of 4 accelerators: CUDA hides all devices after "
            "an invalid entry");
}

TEST(DevicePlanTest, ReportsDifferencesBetweenHostsOnce) {
  PlanInput input(2, 2);
  for (HostAnswer& answer : input.answers)
    answer.facts.mutable_device_view()->add_disagreements("NVML does not know 0000:01:00.0");
  EXPECT_EQ(input.warning().where, "n[0-1]");
}

TEST(DevicePlanTest, ReportsSlurmsShareOnceForAllHosts) {
  PlanInput input(1, 3);
  for (HostAnswer& answer : input.answers) {
    answer.facts.mutable_device_view()->set_unusable(7);
    answer.facts.mutable_device_view()->set_hidden_by("SLURM_GPUS_PER_TASK=1");
  }
  const Diagnostic warning = input.warning();
  EXPECT_EQ(warning.id, "IVY-P018");
  EXPECT_EQ(warning.what, "SLURM_GPUS_PER_TASK=1 hides 7 of 8 accelerators");
  EXPECT_EQ(warning.where, "n[0-2]");
  EXPECT_NE(warning.fix.find("--gpus-per-node=8 --ntasks-per-node=1"), std::string::npos);
}

TEST(DevicePlanTest, GivesEachWorkerOneInstance) {
  PlanInput input(4, 2);
  input.answers[1].facts.mutable_devices(3)->set_is_mig(true);
  input.options.gpus_per_proc = 2;
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.id, "IVY-P021");
  EXPECT_EQ(rejection.what, "--gpus-per-proc 2: the accelerators are MIG instances");
  EXPECT_EQ(rejection.where, "n1");
  input.options.gpus_per_proc = 1;
  input.plan();
  EXPECT_TRUE(input.rejections.empty());
}

TEST(DevicePlanTest, ListsDevicesInUseInThePlanLine) {
  PlanInput input(2, 2);
  Accelerator& device = *input.answers[1].facts.mutable_devices(1);
  device.add_users(77);
  device.add_users(78);
  device.set_used_bytes(3ull << 29);
  EXPECT_NE(
      plan_line(input.plan()).find("accelerator 1 on n1 is in use by pid 77 and 1 more (1.5 GiB)"),
      std::string::npos)
      << plan_line(input.plan());
}

TEST(DevicePlanTest, BindsWorkersNearTheirAccelerators) {
  PlanInput input(4);
  JobPlan plan = input.plan();
  const std::vector<PlannedWorker>& workers = plan.hosts[0].workers;
  EXPECT_EQ(core_list_text(workers[1].cores), "0-15");
  EXPECT_EQ(workers[1].memory_node, 0);
  EXPECT_EQ(workers[1].sharers, 2);
  EXPECT_EQ(core_list_text(workers[2].cores), "16-31");
  EXPECT_EQ(binding_lines(plan)[2], "rank 2 on n0: processors 16-31, memory of NUMA node 1");
  input.options.bind_to = BindChoice::kNone;
  EXPECT_TRUE(input.plan().hosts[0].workers[1].cores.empty());
  PlanInput even(2);
  even.answers[0].facts.set_allowed_cores("0-15");
  EXPECT_TRUE(even.plan().hosts[0].workers[0].cores.empty()) << "all allowed cores are near";
  PlanInput across(4);
  across.options.gpus_per_proc = 4;
  EXPECT_EQ(core_list_text(across.plan().hosts[0].workers[0].cores), "0-31");
  EXPECT_FALSE(across.plan().hosts[0].workers[0].memory_node);
}

TEST(DevicePlanTest, DividesCoresBetweenFakeHosts) {
  PlanInput input(0);
  for (int core = 0; core < 4; ++core) {
    CoreFacts& facts = *input.answers[0].facts.add_core_list();
    facts.set_processors(std::to_string(core));
    facts.set_numa_node(0);
  }
  input.options.bind_to = BindChoice::kCore;
  input.use_fake_hosts(2);
  input.per_host(2);
  const std::vector<std::string> lines = binding_lines(input.plan());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2], "rank 2 on n0: processors 2");
}

TEST(DevicePlanTest, ListsEachInterfaceOnce) {
  PlanInput input(3);
  input.options.gpus_per_proc = 3;
  for (const auto& [device, interface] : {std::pair(0, "eth10"), {1, "eth1"}, {2, "eth10"}})
    input.answers.front().facts.mutable_devices(device)->set_interface(interface);
  const JobPlan plan = input.plan();
  EXPECT_NE(plan_table(input.options, plan, input.answers).find("eth10,eth1\n"), std::string::npos)
      << plan_table(input.options, plan, input.answers);
}

}  // namespace
}  // namespace ivy
