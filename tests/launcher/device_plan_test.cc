// SPDX-License-Identifier: Apache-2.0
// Accelerators in the plan: who gets which, what is refused, what is said.
#include "launcher/plan/device_plan.h"

#include <gtest/gtest.h>

#include "launcher/plan/plan.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

struct Paper {
  explicit Paper(int accelerators, int hosts = 1) {
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
  void pretend(int hosts) {
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
    refusals.clear();
    return make_plan(options, "job", answers, refusals).value();
  }
  // "0 1 | 2 3", the devices of each worker.
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
  Diagnostic refusal() {
    plan();
    EXPECT_EQ(refusals.size(), 1u);
    return refusals.empty() ? Diagnostic{} : refusals.front();
  }
  Diagnostic warning() {
    const JobPlan made = plan();
    EXPECT_EQ(made.warnings.size(), 1u);
    return made.warnings.empty() ? Diagnostic{} : made.warnings.front();
  }

  Options options;
  std::vector<HostAnswer> answers;
  std::vector<Diagnostic> refusals;
};

TEST(DevicePlanTest, OneForEachSeveralForEachAndShared) {
  Paper paper(4);
  EXPECT_EQ(paper.devices(), " 0 | 1 | 2 | 3");
  paper.options.gpus_per_proc = 2;
  EXPECT_EQ(paper.devices(), " 0 1 | 2 3");
  EXPECT_NE(plan_line(paper.plan()).find("one per 2 accelerators"), std::string::npos);
  paper.options.gpus_per_proc.reset();
  paper.per_host(6);
  EXPECT_EQ(paper.devices(), " 0 | 1 | 2 | 3 | 0 | 1");
  EXPECT_NE(plan_line(paper.plan()).find("6 workers share 4 accelerators"), std::string::npos);
  EXPECT_TRUE(paper.refusals.empty());
  EXPECT_TRUE(paper.plan().warnings.empty()) << "the plan line says it";
}

TEST(DevicePlanTest, NamesTheHostsThatHaveFewerAccelerators) {
  Paper paper(8, 3);
  const auto words = [&] { return paper.plan().device_words; };
  EXPECT_EQ(words().find("accelerators differ"), std::string::npos) << words();
  paper.answers[1].facts.mutable_devices()->RemoveLast();
  paper.answers[1].facts.set_accelerators(7);
  paper.answers[1].facts.mutable_device_view()->set_present(7);
  EXPECT_NE(words().find("accelerators differ: 8 on n[0,2], 7 on n1"), std::string::npos)
      << words();
}

TEST(DevicePlanTest, PretendedHostsDivideAndShare) {
  Paper divided(5);
  divided.pretend(2);
  EXPECT_EQ(divided.devices(), " 0 | 1 | 2 | 3 | 4");
  EXPECT_TRUE(divided.plan().hosts[1].has_part_of_devices);
  Paper shared(2);
  shared.pretend(3);
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
    Paper paper(4);
    paper.options.visible = test.visible;
    paper.options.profile = test.profile;
    if (test.several) paper.options.gpus_per_proc = 1;
    paper.answers[0].facts.mutable_devices(3)->set_is_mig(test.mig);
    EXPECT_EQ(paper.plan().hosts[0].sees_own, test.own) << &test - cases;
  }
  Paper none(0);
  none.options.profile = kNumpy;
  EXPECT_FALSE(none.plan().hosts[0].sees_own) << "there is nothing to see";
}

TEST(DevicePlanTest, MoreThanThereAreIsRefusedWhereDevicesWereAskedFor) {
  Paper paper(4, 3);
  paper.per_host(6);
  paper.options.visible = VisibleChoice::kOwn;
  Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.id, "IVY-P011");
  EXPECT_EQ(refusal.exit_code, kExitRefused);
  EXPECT_EQ(refusal.what, "6 workers on n0 need 6 accelerators, 4 are visible");
  EXPECT_EQ(refusal.where, "n[0-2]") << "hosts with the same trouble share a message";
  EXPECT_NE(refusal.fix.find("--nproc-per-node 4"), std::string::npos);
  paper.options.oversubscribe = true;
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty());
  Paper several(4);
  several.per_host(2);
  several.options.gpus_per_proc = 3;
  EXPECT_EQ(several.refusal().what,
            "2 workers on n0 with 3 accelerators each need 6, 4 are visible");
  Paper none(0);
  none.options.gpus_per_proc = 2;
  EXPECT_NE(none.refusal().fix.find("without accelerators"), std::string::npos);
  EXPECT_EQ(none.refusal().what,
            "1 worker on n0 with 2 accelerators each needs 2, none is visible");
}

TEST(DevicePlanTest, AMaskIsNamedWhereItIsTheReason) {
  Paper paper(2);
  paper.per_host(3);
  DeviceView& view = *paper.answers[0].facts.mutable_device_view();
  view.set_present(8);
  view.set_mask("CUDA_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(paper.warning().cause, "CUDA_VISIBLE_DEVICES=0,1 hides 6 of 8 accelerators");
  paper.options.visible = VisibleChoice::kOwn;
  EXPECT_EQ(paper.refusal().cause, "CUDA_VISIBLE_DEVICES=0,1 hides 6 of 8 accelerators");
  view.set_hidden_by("SLURM_GPUS_PER_TASK=1");
  EXPECT_NE(paper.refusal().fix.find("--gpus-per-node=8 --ntasks-per-node=1"), std::string::npos);
}

// What Slurm's mask hides is another job's: more is Slurm's to give.
TEST(DevicePlanTest, MoreThanSlurmsMaskShowsIsAskedOfSlurm) {
  struct Case {
    int workers;
    int each;  // 0: not said.
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
    Paper paper(2);
    paper.per_host(test.workers);
    if (test.each > 0) paper.options.gpus_per_proc = test.each;
    if (test.is_strict) paper.options.visible = VisibleChoice::kOwn;
    DeviceView& view = *paper.answers[0].facts.mutable_device_view();
    view.set_present(8);
    view.set_unusable(test.unusable);
    view.set_mask("CUDA_VISIBLE_DEVICES=0,1");
    const auto fix = [&] { return (test.is_strict ? paper.refusal() : paper.warning()).fix; };
    EXPECT_NE(fix().find("unset CUDA_VISIBLE_DEVICES"), std::string::npos) << fix();
    EXPECT_EQ(fix().find("Slurm"), std::string::npos) << fix();
    view.set_is_slurms_mask(true);
    EXPECT_EQ(fix().find("unset"), std::string::npos) << fix();
    EXPECT_NE(fix().find(test.advice), std::string::npos) << fix();
    if (!test.is_strict) continue;
    // Where it is about tasks there is other advice.
    view.set_hidden_by("SLURM_GPUS_PER_TASK=1");
    EXPECT_EQ(fix().find("unset"), std::string::npos) << fix();
    EXPECT_EQ(fix().find("ask Slurm for"), std::string::npos) << fix();
    EXPECT_NE(fix().find("instead of --gpus-per-task"), std::string::npos) << fix();
  }
  // It has all that the host has.
  Paper all(2);
  all.per_host(3);
  all.options.visible = VisibleChoice::kOwn;
  all.answers[0].facts.mutable_device_view()->set_mask("CUDA_VISIBLE_DEVICES=0,1");
  all.answers[0].facts.mutable_device_view()->set_is_slurms_mask(true);
  EXPECT_EQ(all.refusal().fix.find("Slurm"), std::string::npos) << all.refusal().fix;
}

TEST(DevicePlanTest, MasksThatNameNothing) {
  Paper none(0);
  DeviceView& view = *none.answers[0].facts.mutable_device_view();
  view.set_present(4);
  view.set_mask("CUDA_VISIBLE_DEVICES=9");
  view.set_mask_error("there is no device 9, only 0-3");
  const Diagnostic refusal = none.refusal();
  EXPECT_EQ(refusal.id, "IVY-P017");
  EXPECT_EQ(refusal.what, "CUDA_VISIBLE_DEVICES=9 lists no accelerator");
  Paper some(1);
  *some.answers[0].facts.mutable_device_view() = view;
  EXPECT_EQ(some.warning().id, "IVY-P017");
  EXPECT_EQ(some.warning().what,
            "CUDA_VISIBLE_DEVICES=9 leaves 1 of 4 accelerators: CUDA hides all devices after "
            "an invalid entry");
}

TEST(DevicePlanTest, ReportsDifferencesBetweenHostsOnce) {
  Paper paper(2, 2);
  for (HostAnswer& answer : paper.answers)
    answer.facts.mutable_device_view()->add_disagreements("NVML does not know 0000:01:00.0");
  EXPECT_EQ(paper.warning().where, "n[0-1]");
}

TEST(DevicePlanTest, SlurmsShareIsSaidOnceForAllHosts) {
  Paper paper(1, 3);
  for (HostAnswer& answer : paper.answers) {
    answer.facts.mutable_device_view()->set_unusable(7);
    answer.facts.mutable_device_view()->set_hidden_by("SLURM_GPUS_PER_TASK=1");
  }
  const Diagnostic warning = paper.warning();
  EXPECT_EQ(warning.id, "IVY-P018");
  EXPECT_EQ(warning.what, "SLURM_GPUS_PER_TASK=1 hides 7 of 8 accelerators");
  EXPECT_EQ(warning.where, "n[0-2]");
  EXPECT_NE(warning.fix.find("--gpus-per-node=8 --ntasks-per-node=1"), std::string::npos);
}

TEST(DevicePlanTest, AWorkerHasOneInstance) {
  Paper paper(4, 2);
  paper.answers[1].facts.mutable_devices(3)->set_is_mig(true);
  paper.options.gpus_per_proc = 2;
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.id, "IVY-P021");
  EXPECT_EQ(refusal.what, "--gpus-per-proc 2: the accelerators are MIG instances");
  EXPECT_EQ(refusal.where, "n1");
  paper.options.gpus_per_proc = 1;
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty());
}

TEST(DevicePlanTest, DevicesInUseStandInThePlanLine) {
  Paper paper(2, 2);
  Accelerator& device = *paper.answers[1].facts.mutable_devices(1);
  device.add_users(77);
  device.add_users(78);
  device.set_used_bytes(3ull << 29);
  EXPECT_NE(
      plan_line(paper.plan()).find("accelerator 1 on n1 is in use by pid 77 and 1 more (1.5 GiB)"),
      std::string::npos)
      << plan_line(paper.plan());
}

TEST(DevicePlanTest, WorkersAreBoundNearTheirAccelerators) {
  Paper paper(4);
  JobPlan plan = paper.plan();
  const std::vector<PlannedWorker>& workers = plan.hosts[0].workers;
  EXPECT_EQ(core_list_text(workers[1].cores), "0-15");
  EXPECT_EQ(workers[1].memory_node, 0);
  EXPECT_EQ(workers[1].sharers, 2);
  EXPECT_EQ(core_list_text(workers[2].cores), "16-31");
  EXPECT_EQ(binding_lines(plan)[2], "rank 2 on n0: processors 16-31, memory of NUMA node 1");
  paper.options.bind_to = BindChoice::kNone;
  EXPECT_TRUE(paper.plan().hosts[0].workers[1].cores.empty());
  Paper even(2);
  even.answers[0].facts.set_allowed_cores("0-15");
  EXPECT_TRUE(even.plan().hosts[0].workers[0].cores.empty()) << "all that may be used is near";
  Paper across(4);
  across.options.gpus_per_proc = 4;
  EXPECT_EQ(core_list_text(across.plan().hosts[0].workers[0].cores), "0-31");
  EXPECT_FALSE(across.plan().hosts[0].workers[0].memory_node);
}

TEST(DevicePlanTest, PretendedHostsDivideTheMachinesCores) {
  Paper paper(0);
  for (int core = 0; core < 4; ++core) {
    CoreFacts& facts = *paper.answers[0].facts.add_core_list();
    facts.set_processors(std::to_string(core));
    facts.set_numa_node(0);
  }
  paper.options.bind_to = BindChoice::kCore;
  paper.pretend(2);
  paper.per_host(2);
  const std::vector<std::string> lines = binding_lines(paper.plan());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2], "rank 2 on n0: processors 2");
}

TEST(DevicePlanTest, ListsEachInterfaceOnce) {
  Paper paper(3);
  paper.options.gpus_per_proc = 3;
  for (const auto& [device, interface] : {std::pair(0, "eth10"), {1, "eth1"}, {2, "eth10"}})
    paper.answers.front().facts.mutable_devices(device)->set_interface(interface);
  const JobPlan plan = paper.plan();
  EXPECT_NE(plan_table(paper.options, plan, paper.answers).find("eth10,eth1\n"), std::string::npos)
      << plan_table(paper.options, plan, paper.answers);
}

}  // namespace
}  // namespace ivy
