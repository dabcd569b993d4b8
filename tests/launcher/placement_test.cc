// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/placement.h"

#include <gtest/gtest.h>

#include "launcher/plan/device_and_slurm_variables.h"
#include "launcher/plan/device_checks.h"

namespace ivy {
namespace {

SlurmAllocation four() {
  SlurmAllocation allocation;
  allocation.job_id = "1234";
  allocation.hosts = {"n1", "n2", "n3", "n4"};
  allocation.node_name = "n2";
  allocation.node_id = 1;
  return allocation;
}

Options with_hosts(const std::string& list) {
  Options options;
  if (list.empty()) return options;
  options.hosts = parse_host_list(list, "-H").value();
  options.host_source = "-H";
  return options;
}

bool is_n2(const std::string& name) { return name == "localhost" || name == "n2"; }

std::string placed(const std::string& list, const SlurmAllocation& allocation = four()) {
  Options options = with_hosts(list);
  const Result<void> done = place_in_allocation(allocation_of(allocation), is_n2, options);
  if (!done.ok()) return "error " + done.error().message;
  std::string out = options.host_source + ":";
  for (const Host& host : options.hosts)
    out += " " + host.name + (host.slots ? ":" + std::to_string(*host.slots) : "");
  return out;
}

TEST(PlacementTest, UsesAllHostsOrTheNamedOnes) {
  EXPECT_EQ(placed(""), "Slurm job 1234: n1 n2 n3 n4");
  EXPECT_EQ(placed("n3,n1:2"), "-H within Slurm job 1234: n3 n1:2");
  EXPECT_EQ(placed("localhost:2"), "-H within Slurm job 1234: n2:2");
  EXPECT_EQ(placed("n4.cluster"), "-H within Slurm job 1234: n4");
  SlurmAllocation long_names = four();
  long_names.hosts = {"n1.a", "n1.b"};
  EXPECT_EQ(placed("n1.b", long_names), "-H within Slurm job 1234: n1.b");
}

TEST(PlacementTest, ReachesHostsOfAnotherSchedulerAsUsual) {
  const Allocation other{"batch job 7", {"n1", "n2"}, std::nullopt, std::nullopt};
  Options all = with_hosts("");
  ASSERT_TRUE(place_in_allocation(other, is_n2, all).ok());
  EXPECT_EQ(all.hosts.size(), 2u);
  EXPECT_EQ(all.host_source, "batch job 7");
  EXPECT_FALSE(all.allocation.has_value());
  EXPECT_EQ(all.batch_job, "batch job 7");
  Options named = with_hosts("me@n1:port=22");
  ASSERT_TRUE(place_in_allocation(other, is_n2, named).ok());
  EXPECT_EQ(named.hosts.front().user, "me");
}

TEST(PlacementTest, RejectsOtherHosts) {
  EXPECT_EQ(placed("n1,n[5-6]"), "error -H: n[5-6] are not in Slurm job 1234 (n[1-4])");
  EXPECT_EQ(placed("n10"), "error -H: n10 is not in Slurm job 1234 (n[1-4])");
  EXPECT_EQ(placed("n2,localhost"), "error -H: localhost is n2, which is already listed");
  EXPECT_EQ(placed("me@n1"),
            "error -H: n1 is written with a user, which only SSH supports; in Slurm job 1234 Slurm "
            "starts ivyrun on the hosts");
  EXPECT_EQ(placed("n1:port=22"),
            "error -H: n1 is written with a port, which only SSH supports; in Slurm job 1234 Slurm "
            "starts ivyrun on the hosts");
  // salloc's shell on a login node.
  SlurmAllocation elsewhere = four();
  elsewhere.node_id.reset();
  elsewhere.hosts = {"n1", "n3"};
  EXPECT_EQ(placed("localhost", elsewhere),
            "error -H: localhost is not in Slurm job 1234 (n[1,3])");
}

TEST(PlacementTest, IgnoresTheAllocationForOtherTransportsAndHosts) {
  struct Case {
    const char* hosts;
    TransportChoice transport;
    bool passed_over;
  };
  const Case cases[] = {
      {"", TransportChoice::kAuto, false},   {"", TransportChoice::kLocal, true},
      {"", TransportChoice::kSsh, false},    {"n9", TransportChoice::kAuto, false},
      {"n9", TransportChoice::kSsh, true},   {"n9", TransportChoice::kAgent, true},
      {"n9", TransportChoice::kLocal, true},
  };
  for (const Case& c : cases) {
    Options options = with_hosts(c.hosts);
    options.transport = c.transport;
    EXPECT_EQ(ignores_allocation(options), c.passed_over) << c.hosts;
  }
  Options fake;
  fake.hosts = fake_hosts(2);
  EXPECT_TRUE(ignores_allocation(fake));
}

TEST(PlacementTest, ExplainsTheCorrectCommandInsideAStep) {
  SlurmAllocation allocation = four();
  allocation.step = SlurmStep{"0", 8, 0};
  const Error error = started_as_tasks_error(allocation, "ivyrun -n 8 'my train.py'");
  EXPECT_EQ(error.message,
            "srun started ivyrun 8 times (Slurm job 1234, step 0): each of them would start "
            "the whole job");
  EXPECT_EQ(error.fix, "run it inside sbatch or salloc, without srun: ivyrun -n 8 'my train.py'");
}

// ---- Devices
// -------------------------------------------------------------------------------------

struct Planned {
  Options options;
  std::vector<HostAnswer> answers;
  JobPlan plan;
};

Planned two_hosts(int workers, std::uint32_t devices) {
  Planned made;
  made.options.allocation = four();
  for (int i = 0; i < 2; ++i) {
    HostAnswer answer;
    answer.name = "n" + std::to_string(i + 1);
    answer.facts.set_accelerators(devices);
    made.answers.push_back(answer);
    PlannedHost host;
    host.name = answer.name;
    host.node_rank = i;
    host.host_index = static_cast<std::size_t>(i);
    for (int local = 0; local < workers; ++local)
      host.workers.push_back(PlannedWorker{made.plan.world_size++, local});
    made.plan.hosts.push_back(host);
  }
  return made;
}

// Plans hosts that show `visible` of four devices.
Planned checked(int workers, std::uint32_t visible, std::optional<int> allocated,
                const std::string& bound_by, std::vector<Diagnostic>& rejections,
                bool oversubscribe = false) {
  Planned made = two_hosts(workers, visible);
  made.options.oversubscribe = oversubscribe;
  made.options.allocation->gpus_requested = "--gpus-per-task 1";
  made.options.allocation->gpus_bound_by = bound_by;
  made.options.allocation->gpus_here = allocated;
  PlanContext made_context{made.options, made.answers, made.plan, rejections};
  check_allocated_devices(made_context);
  return made;
}

TEST(DeviceChecksTest, NamesGpusPerTask) {
  std::vector<Diagnostic> rejections;
  checked(4, 1, 4, "--gpus-per-task", rejections);
  ASSERT_EQ(rejections.size(), 1U);
  EXPECT_EQ(rejections[0].what, "4 workers, but --gpus-per-task leaves 1 of 4 devices visible");
  EXPECT_EQ(rejections[0].where, "n1");
  EXPECT_EQ(rejections[0].severity, Severity::kError);
  EXPECT_NE(rejections[0].fix.find("--gpus-per-node N with --ntasks-per-node 1"),
            std::string::npos);
  EXPECT_NE(rejections[0].fix.find("--nproc-per-node 1\n"), std::string::npos);
  rejections.clear();
  checked(4, 1, 4, "--gpu-bind=single", rejections);
  ASSERT_EQ(rejections.size(), 1U);
  EXPECT_NE(rejections[0].fix.find("without --gpu-bind=single"), std::string::npos);
}

// With one worker for each visible device, three idle devices would not be noticed.
TEST(DeviceChecksTest, WarnsOfIdleDevices) {
  for (const auto& [workers, oversubscribe] : {std::pair{1, false}, {4, true}}) {
    std::vector<Diagnostic> rejections;
    const Planned made = checked(workers, 1, 4, "--gpus-per-task", rejections, oversubscribe);
    EXPECT_TRUE(rejections.empty());
    ASSERT_EQ(made.plan.warnings.size(), 1U);
    EXPECT_EQ(made.plan.warnings[0].what, "--gpus-per-task leaves 1 of 4 devices visible");
    EXPECT_EQ(made.plan.warnings[0].where, "n[1-2]");
    EXPECT_EQ(made.plan.warnings[0].severity, Severity::kWarning);
  }
}

TEST(DeviceChecksTest, AcceptsEverythingElse) {
  const std::string per_task = "--gpus-per-task";
  for (const auto& [workers, visible, allocated, bound_by] : {std::tuple{4, 4U, 4, per_task},
                                                              {4, 2U, 2, per_task},
                                                              {4, 2U, 4, std::string()},
                                                              {1, 1U, 1, per_task}}) {
    std::vector<Diagnostic> rejections;
    const Planned made = checked(workers, visible, allocated, bound_by, rejections);
    EXPECT_TRUE(rejections.empty()) << workers << " " << visible;
    EXPECT_TRUE(made.plan.warnings.empty());
  }
  std::vector<Diagnostic> rejections;
  checked(4, 1, {}, per_task, rejections);
  EXPECT_TRUE(rejections.empty()) << "it is unknown whether any is hidden";
  Planned outside = two_hosts(4, 1);
  outside.options.allocation.reset();
  PlanContext outside_context{outside.options, outside.answers, outside.plan, rejections};
  check_allocated_devices(outside_context);
  EXPECT_TRUE(rejections.empty());
}

TEST(DeviceChecksTest, WarnsIfNoDeviceIsVisible) {
  Planned made = two_hosts(1, 0);
  made.options.allocation->gpus_here = 4;
  std::vector<Diagnostic> rejections;
  PlanContext made_context{made.options, made.answers, made.plan, rejections};
  check_allocated_devices(made_context);
  ASSERT_EQ(made.plan.warnings.size(), 1U);
  EXPECT_EQ(made.plan.warnings[0].where, "n[1-2]");
  EXPECT_EQ(made.plan.warnings[0].cause, "SLURM_GPUS_ON_NODE=4 in Slurm job 1234");
}

// ---- Slurm's variables
// -------------------------------------------------------------------------

std::string line(const Environment& environment) {
  std::string out;
  for (const EnvVariable& variable : environment)
    out += (out.empty() ? "" : " ") + variable.name.substr(6) + "=" + variable.value;
  return out;
}

TEST(SlurmVariablesTest, DescribeThisJob) {
  Planned made = two_hosts(2, 0);
  EXPECT_EQ(
      line(slurm_host_variables(made.plan, made.plan.hosts[1])),
      "NODEID=1 GTIDS=2,3 NTASKS=4 NPROCS=4 TASKS_PER_NODE=2(x2) STEP_NODELIST=n[1-2] NNODES=2 "
      "STEP_NUM_NODES=2 STEP_NUM_TASKS=4 STEP_TASKS_PER_NODE=2(x2) NTASKS_PER_NODE=2");
  EXPECT_EQ(line(slurm_rank_variables(made.plan.hosts[1].workers[0])), "PROCID=2 LOCALID=0");

  made.plan.hosts[0].workers.resize(1);
  made.plan.same_local_size = false;
  EXPECT_EQ(
      find_variable(slurm_host_variables(made.plan, made.plan.hosts[0]), "SLURM_NTASKS_PER_NODE"),
      nullptr);
}

TEST(SlurmVariablesTest, PassesOnlyTheJobsVariables) {
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_ARRAY_TASK_ID",
                           "SLURM_RESTART_COUNT", "SLURM_CONF"})
    EXPECT_TRUE(is_of_slurm_job(name)) << name;
  for (const char* name : {"SLURM_JOB_GPUS", "SLURMD_NODENAME", "SLURM_STEP_ID", "SLURM_NODEID",
                           "SLURM_CPU_BIND", "PATH"})
    EXPECT_FALSE(is_of_slurm_job(name)) << name;
}

}  // namespace
}  // namespace ivy
