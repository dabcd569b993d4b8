// SPDX-License-Identifier: Apache-2.0
// Selects the hosts of a job with --nnodes MIN:MAX, as a table.
#include "launcher/job/hosts/membership.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

constexpr Member A = Member::kAwaited;
constexpr Member H = Member::kPresent;
constexpr Member G = Member::kExcluded;

TEST(MembershipTest, DecidesByThePresentAndAwaitedHosts) {
  using D = MemberDecision;
  const struct {
    std::vector<Member> members;
    std::size_t least;
    D in_time;    // While --start-timeout runs...
    D timed_out;  // ...and after it has expired.
    std::size_t spare;
  } rows[] = {
      // All hosts are present or excluded, so there is nothing to wait for.
      {{H, H, H}, 2, D::kContinue, D::kContinue, 1},
      {{H, H, H}, 3, D::kContinue, D::kContinue, 0},
      {{H}, 1, D::kContinue, D::kContinue, 0},
      // Enough hosts are present, but another may still come up.
      {{H, H, A}, 2, D::kWait, D::kContinue, 0},
      {{A, H, H}, 1, D::kWait, D::kContinue, 1},
      // Excluded hosts are not waited for.
      {{H, H, G}, 2, D::kContinue, D::kContinue, 0},
      {{G, H, H}, 1, D::kContinue, D::kContinue, 1},
      // Not enough hosts yet, and too few even with the awaited ones.
      {{H, A, A}, 2, D::kWait, D::kTooFew, 0},
      {{H, A, G}, 2, D::kWait, D::kTooFew, 0},
      {{H, G, G}, 2, D::kTooFew, D::kTooFew, 0},
      {{A, G, G}, 2, D::kTooFew, D::kTooFew, 0},
      {{G, G}, 1, D::kTooFew, D::kTooFew, 0},
      {{A, A}, 1, D::kWait, D::kTooFew, 0},
  };
  for (const auto& row : rows) {
    const auto where = &row - rows;
    EXPECT_EQ(decide_members(row.members, row.least, false), row.in_time) << "row " << where;
    EXPECT_EQ(decide_members(row.members, row.least, true), row.timed_out) << "row " << where;
    EXPECT_EQ(spare_members(row.members, row.least), row.spare) << "row " << where;
  }
}

TEST(MembershipTest, NamesEveryMissingHost) {
  EXPECT_EQ(members_line(3, 3, "--nnodes 2:3", {}), "3 of 3 hosts (--nnodes 2:3)");
  EXPECT_EQ(members_line(2, 3, "--nnodes 2:3", {{"node03", "connecting", "no answer in 5 s"}}),
            "2 of 3 hosts (--nnodes 2:3), without node03 (connecting: no answer in 5 s)");
  EXPECT_EQ(members_line(2, 6, "--nnodes 2:6",
                         {{"n3", "connecting", "no answer"},
                          {"n4", "", "was lost"},
                          {"n5", "connecting", "no answer"},
                          {"n6", "logging in", "no answer"}}),
            "2 of 6 hosts (--nnodes 2:6), without n[3,5] (connecting: no answer), n4 (was lost), "
            "n6 (logging in: no answer)");
}

TEST(MembershipTest, TruncatesALongListOfReasons) {
  std::vector<ExcludedHost> gone;
  for (int i = 0; i < 12; ++i)
    gone.push_back({"h" + std::to_string(i) + "x", "", std::to_string(i)});
  const std::string line = members_line(1, 13, "--nnodes 1:13", gone);
  EXPECT_NE(line.find("h7x (7), h8x, h9x"), std::string::npos) << line;
  EXPECT_NE(line.find("h11x"), std::string::npos) << line;
}

TEST(MembershipTest, IdentifiesPeersByUniqueAddresses) {
  using Words = std::vector<std::string>;
  const Words first = {"10.0.0.1", "172.17.0.1", "fd00::1"};
  const Words second = {"10.0.0.2", "172.17.0.1", "192.168.122.1"};
  const Words third = {"10.0.0.3", "192.168.122.1"};
  EXPECT_EQ(peer_addresses({first, second, third}, 0), (Words{"10.0.0.2", "10.0.0.3"}));
  EXPECT_EQ(peer_addresses({first, second, third}, 2), (Words{"10.0.0.1", "10.0.0.2", "fd00::1"}));
  EXPECT_EQ(peer_addresses({first, third, third}, 0), (Words{"10.0.0.3", "192.168.122.1"}))
      << "two names of one machine";
  EXPECT_EQ(peer_addresses({first, first}, 1), Words{});
  EXPECT_EQ(peer_addresses({first, {}}, 0), Words{}) << "an excluded host";
}

}  // namespace
}  // namespace ivy
