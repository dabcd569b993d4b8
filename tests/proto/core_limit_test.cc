// SPDX-License-Identifier: Apache-2.0
// Core dump limits: the launcher writes no core file, and its children keep the user's limit.
#include "proto/contract/core_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ivy {
namespace {

rlimit core_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_CORE, &limit);
  return limit;
}

TEST(CoreLimitTest, DisablesCoresForTheLauncherButNotForItsChildren) {
  rlimit limit = core_limit();
  if (limit.rlim_max < 4096) GTEST_SKIP() << "the hard limit is too small to tell";
  limit.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &limit), 0);
  leave_no_core();
  leave_no_core();
  EXPECT_EQ(core_limit().rlim_cur, 0u);
  EXPECT_EQ(core_limit().rlim_max, limit.rlim_max);
  {
    const UsersCoreLimit users;
    EXPECT_EQ(core_limit().rlim_cur, 4096u);
  }
  EXPECT_EQ(core_limit().rlim_cur, 0u);
}

}  // namespace
}  // namespace ivy
