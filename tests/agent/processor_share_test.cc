// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/processor_share.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(ProcessorShare, WorkersWithAProcessorEachGetASessionEach) {
  for (const std::size_t workers : {1u, 2u, 8u}) {
    const ProcessorShare share = share_of(workers, 8);
    EXPECT_TRUE(share.own_sessions) << workers;
    EXPECT_EQ(share.autogroup_nice, 0) << workers;
  }
}

TEST(ProcessorShare, WorkersThatShareProcessorsShareASessionWithTheWeightOfAll) {
  // 1.25 to the power of -nice: 3.05, 3.81, 7.45 and at most 9.31 times the weight.
  EXPECT_FALSE(share_of(3, 2).own_sessions);
  EXPECT_EQ(share_of(3, 2).autogroup_nice, -5);
  EXPECT_EQ(share_of(4, 2).autogroup_nice, -6);
  EXPECT_EQ(share_of(8, 2).autogroup_nice, -9);
  EXPECT_EQ(share_of(16, 2).autogroup_nice, -10);
  EXPECT_EQ(share_of(100'000, 2).autogroup_nice, -10);
}

TEST(ProcessorShare, CountsTheProcessorsOfThisProcess) { EXPECT_GE(own_processor_count(), 1u); }

}  // namespace
}  // namespace ivy
