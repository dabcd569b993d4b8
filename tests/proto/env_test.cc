// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/env.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace ivy {
namespace {

TEST(EnvTest, AppliesEveryRuleOfTheTable) {
  const struct {
    const char* name;
    EnvRule rule;
  } cases[] = {
      {"RANK", EnvRule::kSet},
      {"MASTER_ADDR", EnvRule::kSet},
      {"TORCHELASTIC_RUN_ID", EnvRule::kSet},
      {"IVY_TOKEN_FILE", EnvRule::kSet},
      {"IVY_HOSTS", EnvRule::kScrub},
      {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", EnvRule::kScrub},
      {"OMPI_COMM_WORLD_RANK", EnvRule::kScrub},
      {"OMPI_MCA_orte_hnp_uri", EnvRule::kScrub},
      {"OMPI_MCA_plm_slurm_args", EnvRule::kScrub},
      {"PMI_RANK", EnvRule::kScrub},
      {"PMIX_RANK", EnvRule::kScrub},
      {"MPI_LOCALRANKID", EnvRule::kScrub},
      {"MV2_COMM_WORLD_RANK", EnvRule::kScrub},
      {"PALS_RANKID", EnvRule::kScrub},
      {"JSM_NAMESPACE_RANK", EnvRule::kScrub},
      {"FLUX_TASK_RANK", EnvRule::kScrub},
      {"SLURM_PROCID", EnvRule::kSet},
      {"SLURM_STEP_NODELIST", EnvRule::kSet},
      {"SLURM_NTASKS", EnvRule::kSet},
      {"SLURM_TASK_PID", EnvRule::kScrub},
      {"NOTIFY_SOCKET", EnvRule::kScrub},
      {"WATCHDOG_USEC", EnvRule::kScrub},
      {"LISTEN_FDS", EnvRule::kScrub},
      {"IVY_TCP_STREAMS", EnvRule::kAllow},
      {"CUDA_VISIBLE_DEVICES", EnvRule::kInherit},
      {"SSH_AUTH_SOCK", EnvRule::kInherit},
      {"DISPLAY", EnvRule::kInherit},
      {"SLURM_JOB_ID", EnvRule::kInherit},
      {"TF_CONFIG", EnvRule::kInherit},
      {"AWS_SECRET_ACCESS_KEY", EnvRule::kInherit},
      {"HOME", EnvRule::kInherit},
      {"PATH", EnvRule::kAllow},
      {"PATHS", EnvRule::kInherit},
      {"LD_LIBRARY_PATH", EnvRule::kAllow},
      {"PYTHONPATH", EnvRule::kAllow},
      {"VIRTUAL_ENV", EnvRule::kAllow},
      {"CONDA_PREFIX", EnvRule::kAllow},
      {"NCCL_DEBUG", EnvRule::kAllow},
      {"UCX_TLS", EnvRule::kAllow},
      {"FI_PROVIDER", EnvRule::kAllow},
      {"CUDA_LAUNCH_BLOCKING", EnvRule::kAllow},
      {"TORCH_LOGS", EnvRule::kAllow},
      {"HF_HOME", EnvRule::kAllow},
      {"WANDB_MODE", EnvRule::kAllow},
      {"OMP_NUM_THREADS", EnvRule::kAllow},
      {"MKL_NUM_THREADS", EnvRule::kAllow},
      {"XLA_FLAGS", EnvRule::kAllow},
      {"JAX_PLATFORMS", EnvRule::kAllow},
      {"TF_CPP_MIN_LOG_LEVEL", EnvRule::kAllow},
      {"GLOO_SOCKET_IFNAME", EnvRule::kAllow},
      {"MODULEPATH", EnvRule::kAllow},
      {"LC_ALL", EnvRule::kAllow},
      {"TZ", EnvRule::kAllow},
      {"OMPI_MCA_btl", EnvRule::kAllow},
  };
  for (const auto& [name, rule] : cases)
    EXPECT_EQ(static_cast<int>(env_rule(name)), static_cast<int>(rule)) << name;
}

TEST(EnvTest, MatchesALinearSearchOfTheTable) {
  std::vector<std::string> names = {"", "*", "\xff_NAME", "_", "a"};
  for (const EnvEntry& entry : env_table()) {
    const std::string name(entry.pattern.substr(0, entry.pattern.find('*')));
    names.insert(names.end(), {name, name + "X", "X" + name});
  }
  for (const std::string& name : names) {
    const auto first = std::ranges::find_if(env_table(), [&](const EnvEntry& entry) {
      return env_pattern_matches(entry.pattern, name);
    });
    const EnvRule wanted = first == env_table().end() ? EnvRule::kInherit : first->rule;
    EXPECT_EQ(static_cast<int>(env_rule(name)), static_cast<int>(wanted)) << name;
  }
}

TEST(EnvTest, NoEntryHidesALaterOne) {
  const std::span<const EnvEntry> table = env_table();
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_TRUE(seen.insert(table[i].pattern).second) << table[i].pattern;
    EXPECT_FALSE(table[i].reader.empty()) << table[i].pattern;
    const std::string_view name = table[i].pattern.ends_with('*')
                                      ? table[i].pattern.substr(0, table[i].pattern.size() - 1)
                                      : table[i].pattern;
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_FALSE(env_pattern_matches(table[j].pattern, name))
          << table[j].pattern << " hides " << table[i].pattern;
  }
}

TEST(EnvTest, MatchesANameOrAPrefix) {
  for (const auto& [pattern, name] : {std::pair{"RANK", "RANK"},
                                      {"IVY_*", "IVY_"},
                                      {"IVY_*", "IVY_X"},
                                      {"*", "ANY"},
                                      {"*", ""},
                                      {"", ""}})
    EXPECT_TRUE(env_pattern_matches(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : {std::pair{"RANK", "RANKS"},
                                      {"RANKS", "RANK"},
                                      {"RANK", ""},
                                      {"", "RANK"},
                                      {"IVY_*", "IVY"},
                                      {"IVY_*", "XIVY_"}})
    EXPECT_FALSE(env_pattern_matches(pattern, name)) << pattern << " " << name;
}

TEST(EnvTest, AcceptsOnlyNamesThatAShellCanExport) {
  for (const char* good : {"A", "_", "a1", "PATH", "_9"}) EXPECT_TRUE(is_env_name(good)) << good;
  for (const char* bad : {"", "1A", "A-B", "A B", "BASH_FUNC_x%%", "A=", "\xc3\xa9"})
    EXPECT_FALSE(is_env_name(bad)) << bad;
}

TEST(EnvTest, ReadsABlockByteForByte) {
  char empty[] = "EMPTY=";
  char equals[] = "EQUALS=a=b";
  char bytes[] = "BYTES=\xff\x01\n";
  char nameless[] = "=C:=x";
  char none[] = "no equals sign";
  char* block[] = {empty, equals, bytes, nameless, none, nullptr};
  const Environment expected = {{"EMPTY", ""}, {"EQUALS", "a=b"}, {"BYTES", "\xff\x01\n"}};
  EXPECT_EQ(environment_of(block), expected);
  EXPECT_TRUE(environment_of(nullptr).empty());
}

TEST(EnvTest, SetReplacesAndUnsetRemoves) {
  Environment environment;
  set_variable(environment, "A", "1");
  set_variable(environment, "B", "2");
  set_variable(environment, "A", "3");
  EXPECT_EQ(environment, (Environment{{"A", "3"}, {"B", "2"}}));
  ASSERT_NE(find_variable(environment, "B"), nullptr);
  EXPECT_EQ(*find_variable(environment, "B"), "2");
  unset_variable(environment, "B");
  unset_variable(environment, "C");
  EXPECT_EQ(find_variable(environment, "B"), nullptr);
  EXPECT_EQ(environment.size(), 1u);
}

}  // namespace
}  // namespace ivy
