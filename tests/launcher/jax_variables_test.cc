// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/jax_variables.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ivy {
namespace {

TEST(JaxVariables, EnableThePreemptionServiceIfTermIsANotice) {
  struct Row {
    bool before_end;
    std::optional<int> signal;
    const char* service;
  };
  const Row rows[] = {{false, std::nullopt, "false"}, {true, std::nullopt, "true"},
                      {false, SIGTERM, "true"},       {true, SIGTERM, "true"},
                      {true, SIGUSR1, "false"},       {false, SIGUSR1, "false"}};
  for (const Row& row : rows) {
    Options options;
    if (row.before_end) options.stop_before_end = std::chrono::seconds(60);
    options.preempt_signal = row.signal;
    const Environment defaults = jax_defaults(options);
    EXPECT_EQ(*find_variable(defaults, "JAX_ENABLE_PREEMPTION_SERVICE"), row.service);
    EXPECT_EQ(find_variable(defaults, "JAX_PLATFORMS"), nullptr);
  }
}

TEST(JaxVariables, HideOtherDevicesWithCpuDevices) {
  Options options;
  options.cpu_devices = 4;
  EXPECT_EQ(*find_variable(jax_defaults(options), "JAX_PLATFORMS"), "cpu");
  EXPECT_EQ(xla_flags("", 4), "--xla_force_host_platform_device_count=4");
  EXPECT_EQ(xla_flags("--a=1", 2), "--a=1 --xla_force_host_platform_device_count=2");
}

TEST(JaxVariables, BindRank0ToAnUnusedPortIfAServiceRuns) {
  Options options;
  EXPECT_TRUE(jax_service_variables(options).empty());
  EXPECT_EQ(find_variable(jax_defaults(options), "JAX_ENABLE_RECOVERABILITY"), nullptr);
  options.app = App::kJaxService;
  EXPECT_EQ(*find_variable(jax_service_variables(options), "JAX_COORDINATOR_BIND_ADDRESS"),
            "127.0.0.1:0");
  EXPECT_EQ(*find_variable(jax_defaults(options), "JAX_ENABLE_RECOVERABILITY"), "true");
}

TEST(JaxVariables, SetOpenMpisVariablesOnlyWithoutTheHook) {
  Options options;
  EXPECT_FALSE(is_jax_by_variables(options));
  options.no_python_hook = true;
  EXPECT_FALSE(is_jax_by_variables(options));
  options.profile = Profile::kJax;
  EXPECT_TRUE(is_jax_by_variables(options));
  options.no_python_hook = false;
  EXPECT_FALSE(is_jax_by_variables(options));
  JobPlan plan;
  plan.world_size = 6;
  PlannedWorker worker;
  worker.rank = 5;
  worker.local_rank = 2;
  const Environment words = jax_rank_variables(plan, worker);
  EXPECT_EQ(*find_variable(words, "OMPI_COMM_WORLD_RANK"), "5");
  EXPECT_EQ(*find_variable(words, "OMPI_COMM_WORLD_SIZE"), "6");
  EXPECT_EQ(*find_variable(words, "OMPI_COMM_WORLD_LOCAL_RANK"), "2");
  EXPECT_NE(find_variable(words, "OMPI_MCA_orte_hnp_uri"), nullptr);
}

}  // namespace
}  // namespace ivy
