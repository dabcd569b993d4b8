// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "launcher/slurm/slurm_allocation.h"

namespace ivy {
namespace {

// The variables that Slurm 22.05 sets for the script of `sbatch -N 3 --ntasks-per-node 1`.
Environment batch() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_JOBID", "1234"},
          {"SLURM_JOB_NODELIST", "n[01-03]"},
          {"SLURM_NODELIST", "n[01-03]"},
          {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURM_JOB_CPUS_PER_NODE", "8(x2),4"},
          {"SLURM_TASKS_PER_NODE", "1(x3)"},
          {"SLURM_CLUSTER_NAME", "test"},
          {"SLURMD_NODENAME", "n02"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_GTIDS", "0"},
          {"SLURM_NTASKS", "3"}};
}

Environment batch_with(const char* name, const char* value) {
  Environment environment = batch();
  set_variable(environment, name, value);
  return environment;
}

SlurmAllocation read(const Environment& environment) {
  Result<std::optional<SlurmAllocation>> found = read_slurm_allocation(environment);
  if (!found.ok()) ADD_FAILURE() << found.error().message;
  return found.ok() && found->has_value() ? **found : SlurmAllocation{};
}

std::string rejection(const Environment& environment) {
  const Result<std::optional<SlurmAllocation>> found = read_slurm_allocation(environment);
  EXPECT_FALSE(found.ok());
  return found.ok() ? "" : found.error().message;
}

TEST(AllocationTest, ReadsABatchScript) {
  const SlurmAllocation found = read(batch());
  EXPECT_EQ(found.job_id, "1234");
  EXPECT_EQ(found.name(), "Slurm job 1234");
  EXPECT_EQ(found.hosts, (std::vector<std::string>{"n01", "n02", "n03"}));
  EXPECT_EQ(found.node_name, "n02");
  EXPECT_EQ(found.node_id, 1);
  EXPECT_FALSE(found.end_unix_s.has_value());
  EXPECT_FALSE(found.gpus_here.has_value());
  EXPECT_FALSE(found.step.has_value()) << "SLURM_PROCID=0 of a batch script is not a rank";
}

TEST(AllocationTest, IsEmptyOutsideSlurm) {
  for (const Environment& environment :
       {Environment{}, Environment{{"SLURM_CONF", "/etc/slurm.conf"}, {"SLURM_JOB_ID", ""}}}) {
    const Result<std::optional<SlurmAllocation>> found = read_slurm_allocation(environment);
    ASSERT_TRUE(found.ok());
    EXPECT_FALSE(found->has_value());
  }
}

TEST(AllocationTest, ReadsOldNames) {
  const SlurmAllocation found = read({{"SLURM_JOBID", "7"}, {"SLURM_NODELIST", "a,b"}});
  EXPECT_EQ(found.job_id, "7");
  EXPECT_EQ(found.hosts, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(found.node_id.has_value());
}

TEST(AllocationTest, RecognizesAStep) {
  Environment environment = batch_with("SLURM_STEP_ID", "2");
  set_variable(environment, "SLURM_STEP_NUM_TASKS", "8");
  set_variable(environment, "SLURM_PROCID", "5");
  SlurmAllocation found = read(environment);
  ASSERT_TRUE(found.step.has_value());
  EXPECT_EQ(found.step->id, "2");
  EXPECT_EQ(found.step->tasks, 8);
  EXPECT_EQ(found.step->task, 5);

  unset_variable(environment, "SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(read(environment).step->tasks, 3) << "SLURM_NTASKS if the step has no value";

  // In a worker of ivyrun, SLURM_PROCID was set by ivyrun.
  set_variable(environment, "IVY_RANK", "5");
  EXPECT_FALSE(read(environment).step.has_value());
}

TEST(AllocationTest, ReadsRequeueArrayAndEnd) {
  Environment environment = batch_with("SLURM_RESTART_COUNT", "2");
  set_variable(environment, "SLURM_ARRAY_JOB_ID", "1230");
  set_variable(environment, "SLURM_ARRAY_TASK_ID", "4");
  set_variable(environment, "SLURM_JOB_END_TIME", "1763780000");
  const SlurmAllocation found = read(environment);
  EXPECT_EQ(found.name(), "Slurm job 1234 (1230_4)");
  EXPECT_EQ(found.end_unix_s, 1763780000);
}

TEST(AllocationTest, ReadsTheRequestedGpus) {
  struct Case {
    Environment variables;
    const char* asked;
    const char* bound_by;
  };
  const Case cases[] = {
      {{}, "", ""},
      {{{"SLURM_GPUS_PER_NODE", "4"}}, "--gpus-per-node 4", ""},
      {{{"SLURM_GPUS", "8"}}, "--gpus 8", ""},
      {{{"SLURM_GPUS_PER_TASK", "1"}, {"SLURM_TRES_PER_TASK", "gres:gpu:1"}},
       "--gpus-per-task 1",
       "--gpus-per-task"},
      {{{"SLURM_TRES_PER_TASK", "gres/gpu:1"}}, "--tres-per-task gres/gpu:1", "--gpus-per-task"},
      {{{"SLURM_TRES_PER_TASK", "cpu=2"}}, "", ""},
      {{{"SLURM_TRES_BIND", "gres/gpu:per_task:1"}}, "", "--gpus-per-task"},
      {{{"SLURM_TRES_BIND", "gres/gpu:single:1"}}, "", "--gpu-bind=single"},
      {{{"SLURM_TRES_BIND", "gres/nic:single:1"}}, "", ""},
      {{{"SLURM_TRES_BIND", "gres/gpu:closest"}}, "", ""},
  };
  for (const Case& c : cases) {
    Environment environment = batch_with("SLURM_GPUS_ON_NODE", "4");
    for (const EnvVariable& variable : c.variables)
      set_variable(environment, variable.name, variable.value);
    const SlurmAllocation found = read(environment);
    EXPECT_EQ(found.gpus_requested, c.asked);
    EXPECT_EQ(found.gpus_bound_by, c.bound_by) << c.asked;
    EXPECT_EQ(found.gpus_here, 4);
  }
}

// The shell of salloc lacks SLURM_GPUS_ON_NODE, and hosts may have different numbers of tasks.
TEST(AllocationTest, CountsGpusOfTasks) {
  const std::tuple<const char*, const char*, std::vector<int>> cases[] = {
      {"SLURM_GPUS_PER_TASK", "1", {4, 4, 1}},
      {"SLURM_GPUS_PER_TASK", "a100:2", {8, 8, 2}},
      {"SLURM_GPUS_PER_TASK", "a100:1,h100:1", {8, 8, 2}},
      {"SLURM_GPUS_PER_TASK", "2g.10gb", {4, 4, 1}},
      {"SLURM_GPUS_PER_TASK", "2000000000", {16384, 16384, 4096}},
      {"SLURM_TRES_PER_TASK", "cpu=8,gres/gpu=2", {8, 8, 2}},
      {"SLURM_TRES_PER_TASK", "gres/nic:3,gres/gpu:a100:1", {4, 4, 1}},
      {"SLURM_GPUS_PER_NODE", "2", {}},
  };
  for (const auto& [name, value, expected] : cases) {
    Environment environment = batch_with("SLURM_TASKS_PER_NODE", "4(x2),1");
    set_variable(environment, name, value);
    EXPECT_EQ(read(environment).gpus, expected) << name << "=" << value;
  }
  Environment environment = batch_with("SLURM_TASKS_PER_NODE", "4(x2),1");
  set_variable(environment, "SLURM_GPUS_ON_NODE", "4");
  EXPECT_EQ(read(environment).gpus_of("n03"), 4);
  set_variable(environment, "SLURM_GPUS_PER_TASK", "1");
  EXPECT_EQ(read(environment).gpus_of("n03"), 1);
  EXPECT_EQ(read(batch()).gpus_of("n03"), std::nullopt);
}

TEST(AllocationTest, RejectsImpossibleValues) {
  Environment without_list{{"SLURM_JOB_ID", "1234"}};
  EXPECT_EQ(rejection(without_list), "SLURM_JOB_ID=1234 is set, but SLURM_JOB_NODELIST is not");
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"SLURM_JOB_ID", "12x", "SLURM_JOB_ID=12x is not a value that Slurm sets"},
      {"SLURM_JOB_NODELIST", "n[01-",
       "SLURM_JOB_NODELIST=n[01-: column 2: \"n[01-\" has an unmatched bracket"},
      {"SLURM_JOB_NODELIST", "(null)",
       "SLURM_JOB_NODELIST=(null): column 1: \"(null)\" is not a host name"},
      {"SLURM_JOB_NODELIST", "n01,n01,n02", "SLURM_JOB_NODELIST=n01,n01,n02 names n01 twice"},
      {"SLURM_JOB_NODELIST", "n01",
       "SLURM_JOB_NODELIST=n01 has 1 hosts, but SLURM_JOB_NUM_NODES is 3"},
      {"SLURM_JOB_CPUS_PER_NODE", "8",
       "SLURM_JOB_CPUS_PER_NODE=8 does not match SLURM_JOB_NODELIST=n[01-03] (3 hosts)"},
      {"SLURM_JOB_CPUS_PER_NODE", "8(x",
       "SLURM_JOB_CPUS_PER_NODE=8(x does not match SLURM_JOB_NODELIST=n[01-03] (3 hosts)"},
      {"SLURM_GPUS_ON_NODE", "-1", "SLURM_GPUS_ON_NODE=-1 is not a value that Slurm sets"},
      {"SLURM_JOB_END_TIME", "soon", "SLURM_JOB_END_TIME=soon is not a value that Slurm sets"},
      {"SLURM_PROCID", "x", "SLURM_PROCID=x is not a value that Slurm sets"},
      {"SLURM_HET_SIZE", "2",
       "Slurm job 1234 is a heterogeneous job of 2 components (SLURM_HET_SIZE), which ivyrun "
       "does not support"},
  };
  for (const auto& [name, value, expected] : cases) {
    const Result<std::optional<SlurmAllocation>> found =
        read_slurm_allocation(batch_with(name, value));
    ASSERT_FALSE(found.ok()) << name << "=" << value;
    EXPECT_EQ(found.error().message, expected);
    EXPECT_FALSE(found.error().fix.empty());
  }
}

}  // namespace
}  // namespace ivy
