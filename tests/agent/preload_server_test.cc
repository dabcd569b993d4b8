// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/preload_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/node/spawn/fork_request.h"

namespace ivy {
namespace {

void add_worker(HostPlan& plan, const Environment& variables) {
  WorkerSpec& worker = *plan.add_workers();
  for (const EnvVariable& variable : variables) {
    Variable& added = *worker.add_environment();
    added.set_name(variable.name);
    added.set_value(variable.value);
  }
}

HostPlan plan_of(const std::vector<Environment>& workers) {
  HostPlan plan;
  for (const char* word : {"/usr/bin/python3", "-u", "train.py"}) plan.add_arguments(word);
  plan.mutable_preload()->add_modules("torch");
  for (const Environment& worker : workers) add_worker(plan, worker);
  return plan;
}

std::string value_of(const PreloadCommand& command, const std::string& name) {
  const std::string* const value = find_variable(command.environment, name);
  return value == nullptr ? "(unset)" : *value;
}

TEST(PreloadCommand, HidesVariablesThatDifferBetweenWorkers) {
  const HostPlan plan = plan_of({{{"RANK", "0"}, {"OMP_NUM_THREADS", "4"}, {"MASK", "0"}},
                                 {{"RANK", "1"}, {"OMP_NUM_THREADS", "4"}, {"MASK", "1"}}});
  const auto command = preload_command(plan, {{"MASK", "all"}, {"HOME", "/h"}}, "/tmp/job");
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(value_of(*command, "HOME"), "/h");
  EXPECT_EQ(value_of(*command, "OMP_NUM_THREADS"), "4");
  EXPECT_EQ(value_of(*command, "RANK"), "(unset)");
  EXPECT_EQ(value_of(*command, "MASK"), "(unset)");
  EXPECT_EQ(value_of(*command, "IVY_PRELOAD_VARYING"),
            "TORCHELASTIC_RESTART_COUNT,IVY_GENERATION,RANK,MASK");
}

TEST(PreloadCommand, HidesTheRankOfASingleWorker) {
  const auto command = preload_command(plan_of({{{"RANK", "0"}}}), {}, "/tmp/job");
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(value_of(*command, "RANK"), "(unset)");
}

TEST(PreloadCommand, PutsItsSitecustomizeInFrontOfPythonpath) {
  const auto alone = preload_command(plan_of({{}}), {}, "/tmp/job");
  EXPECT_EQ(value_of(*alone, "PYTHONPATH"), "/tmp/job/preload");
  const auto before = preload_command(plan_of({{}}), {{"PYTHONPATH", "/a:/b"}}, "/tmp/job");
  EXPECT_EQ(value_of(*before, "PYTHONPATH"), "/tmp/job/preload:/a:/b");
}

TEST(PreloadCommand, RejectsDifferentValuesThatPythonReadsAtItsStart) {
  const HostPlan plan = plan_of({{{"PYTHONHASHSEED", "1"}}, {{"PYTHONHASHSEED", "2"}}});
  const auto command = preload_command(plan, {}, "/tmp/job");
  ASSERT_FALSE(command.ok());
  EXPECT_EQ(command.error().message, "have different values of PYTHONHASHSEED");
  EXPECT_FALSE(preload_command(plan_of({{{"LD_PRELOAD", "a"}}, {}}), {}, "/tmp/job").ok());
}

TEST(PreloadCommand, RejectsProgramsThatAreNotPython) {
  HostPlan plan;
  plan.add_arguments("/bin/sh");
  plan.add_arguments("x.sh");
  EXPECT_EQ(preload_command(plan, {}, "/tmp/job").error().message,
            "run a program that is not Python");
}

TEST(PreloadCommand, ServesAttemptsOfTheSameWorld) {
  const auto first =
      preload_command(plan_of({{}}), {{"IVY_GENERATION", "0"}, {"WORLD_SIZE", "2"}}, "/tmp/job");
  const auto again =
      preload_command(plan_of({{}}), {{"IVY_GENERATION", "1"}, {"WORLD_SIZE", "2"}}, "/tmp/job");
  const auto smaller =
      preload_command(plan_of({{}}), {{"IVY_GENERATION", "1"}, {"WORLD_SIZE", "1"}}, "/tmp/job");
  EXPECT_TRUE(serves(*first, *again));
  EXPECT_FALSE(serves(*first, *smaller));
}

TEST(ForkRequest, ListsTheFieldsOfEachWorker) {
  SpawnRequest request;
  request.environment = {{"RANK", "1"}, {"A", "own"}};
  request.shared = std::make_shared<SharedEnvironment>(Environment{{"A", "all"}, {"B", "2"}});
  request.own_session = true;
  request.cores = {0, 1};
  request.memory_node = 1;
  std::vector<ForkedWorker> workers(1);
  workers[0].request = &request;
  const std::string text = fork_request_text(workers, 77);
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < text.size(); at = text.find('\0', at) + 1)
    fields.emplace_back(text.c_str() + at);
  EXPECT_EQ(fields, (std::vector<std::string>{"1", "77", "0", "1", "0 1", "1", "3", "RANK=1",
                                              "A=own", "B=2"}));
}

}  // namespace
}  // namespace ivy
