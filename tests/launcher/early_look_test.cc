#include "launcher/options/early_look.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using Words = std::vector<std::string>;

TEST(EarlyLookTest, ACountOfWorkersAndAProgramAreAJobOfThisHost) {
  EXPECT_TRUE(is_probably_local({"-n", "2", "true"}, {}));
  EXPECT_TRUE(is_probably_local({"-np", "2", "true", "-H", "a,b"}, {}));
  EXPECT_TRUE(
      is_probably_local({"--nproc_per_node=8", "train.py", "--lr", "1"}, {{"PATH", "/bin"}}));
  EXPECT_TRUE(is_probably_local({"--nproc-per-node", "gpu", "train.py"}, {}));
}

TEST(EarlyLookTest, AnythingElseIsReadFirst) {
  for (const Words& words : {Words{}, Words{"true"}, Words{"--help"}, Words{"-n"}, Words{"-n", "2"},
                             Words{"-n", "2", "-H", "a", "true"}, Words{"-n2", "true"},
                             Words{"-n", "2", "--dry-run", "true"}, Words{"-n", "2", "--", "true"}})
    EXPECT_FALSE(is_probably_local(words, {})) << ::testing::PrintToString(words);
}

TEST(EarlyLookTest, AVariableMayNameHosts) {
  for (const char* name : {"IVY_HOSTS", "PET_NNODES", "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS"})
    EXPECT_FALSE(is_probably_local({"-n", "2", "true"}, {{name, "x"}})) << name;
}

}  // namespace
}  // namespace ivy
