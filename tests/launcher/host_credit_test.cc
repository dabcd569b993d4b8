// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/host_credit.h"

#include <gtest/gtest.h>

#include <map>

namespace ivy {
namespace {

using Credit = std::map<int, std::uint64_t>;

TEST(HostCreditTest, SumsTheBytesOfEachHost) {
  HostCredit credit;
  credit.add(1, 10);
  credit.add(0, 5);
  credit.add(1, 7);
  credit.add(2, 0);
  EXPECT_EQ(credit.take(), (Credit{{0, 5}, {1, 17}}));
  EXPECT_EQ(credit.take(), Credit{});
}

TEST(HostCreditTest, GivesNoCreditForRepeatedBytes) {
  HostCredit credit;
  credit.repeat(0, 8);
  credit.add(0, 5);
  EXPECT_EQ(credit.take(), Credit{});
  credit.add(0, 5);
  credit.add(1, 5);
  EXPECT_EQ(credit.take(), (Credit{{0, 2}, {1, 5}}));
}

}  // namespace
}  // namespace ivy
