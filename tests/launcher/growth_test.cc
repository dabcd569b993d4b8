// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/growth.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using std::chrono::seconds;

TEST(DialPausesTest, DoublesThePauseUpToAMinute) {
  DialPauses pauses;
  EXPECT_FALSE(pauses.has_begun());
  DialPauses::Time now = DialPauses::Time() + seconds(1000);
  for (const int pause : {5, 10, 20, 40, 60, 60}) {
    pauses.failed(now);
    EXPECT_TRUE(pauses.has_begun());
    EXPECT_FALSE(pauses.is_due(now + seconds(pause) - std::chrono::milliseconds(1))) << pause;
    EXPECT_TRUE(pauses.is_due(now + seconds(pause))) << pause;
    now += seconds(pause);
  }
  pauses.succeeded();
  pauses.failed(now);
  EXPECT_TRUE(pauses.is_due(now + seconds(5)));
}

TEST(DialPausesTest, WaitsForTheEndOfTheLastSupervisor) {
  DialPauses pauses;
  const DialPauses::Time now = DialPauses::Time() + seconds(1000);
  pauses.failed(now);
  pauses.wait_until(now + seconds(70));
  EXPECT_FALSE(pauses.is_due(now + seconds(69)));
  EXPECT_TRUE(pauses.is_due(now + seconds(70)));
}

}  // namespace
}  // namespace ivy
