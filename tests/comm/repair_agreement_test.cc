// SPDX-License-Identifier: Apache-2.0
// The members of a repaired world, derived from a survivor's view of each rank.
#include "comm/group/world/repair_agreement.h"

#include <gtest/gtest.h>

namespace ivy::comm::test {
namespace {

RepairRank survivor(RepairAim aim, std::uint32_t incarnation = 0) {
  RepairRank rank;
  rank.was_member = true;
  rank.incarnation = incarnation;
  rank.called = aim;
  return rank;
}

RepairRank silent() {
  RepairRank rank;
  rank.was_member = true;
  return rank;
}

RepairRank dead(std::uint32_t incarnation = 0) {
  RepairRank rank = silent();
  rank.incarnation = incarnation;
  rank.is_dead = true;
  return rank;
}

RepairRank with_new_member(RepairRank rank, std::uint32_t incarnation) {
  rank.new_member = incarnation;
  return rank;
}

constexpr RepairAim kShrink = RepairAim::kShrink;
constexpr RepairAim kGrow = RepairAim::kGrow;

struct Case {
  const char* what;
  RepairAim aim;
  RepairView view;
  const char* decision;  // In encoded form; empty if not decided yet.
};

TEST(RepairAgreement, DecidesByTheStateOfEachRank) {
  const Case cases[] = {
      {"all ranks have called",
       kShrink,
       {survivor(kShrink), survivor(kShrink)},
       "members\n0 0 0\n1 0 0"},
      {"one is silent", kShrink, {survivor(kShrink), silent()}, ""},
      {"one is dead",
       kShrink,
       {survivor(kShrink), dead(), survivor(kShrink)},
       "members\n0 0 0\n2 0 0"},
      {"the first is dead", kShrink, {dead(), survivor(kShrink, 3)}, "members\n1 3 0"},
      {"one died earlier",
       kShrink,
       {survivor(kShrink), RepairRank(), survivor(kShrink)},
       "members\n0 0 0\n2 0 0"},
      {"shrink excludes a new process",
       kShrink,
       {survivor(kShrink), with_new_member(dead(), 1)},
       "members\n0 0 0"},
      {"one has called and died",
       kShrink,
       {survivor(kShrink),
        [] {
          RepairRank rank = survivor(kShrink);
          rank.is_dead = true;
          return rank;
        }()},
       "members\n0 0 0"},
      {"grow waits for a replacement", kGrow, {survivor(kGrow), dead()}, ""},
      {"grow includes the replacement",
       kGrow,
       {survivor(kGrow), with_new_member(dead(), 1)},
       "members\n0 0 0\n1 1 1"},
      {"a replacement implies that the previous process is dead",
       kGrow,
       {survivor(kGrow), with_new_member(silent(), 1)},
       "members\n0 0 0\n1 1 1"},
      {"an announcement older than the member is ignored",
       kGrow,
       {survivor(kGrow), with_new_member(dead(1), 1)},
       ""},
      {"a second replacement",
       kGrow,
       {survivor(kGrow), with_new_member(dead(1), 2)},
       "members\n0 0 0\n1 2 1"},
      {"grow after shrink",
       kGrow,
       {survivor(kGrow), with_new_member(RepairRank(), 1)},
       "members\n0 0 0\n1 1 1"},
      {"grow after shrink waits", kGrow, {survivor(kGrow), RepairRank()}, ""},
      {"no rank is left", kShrink, {dead(), dead()}, ""},
  };
  for (const Case& each : cases) {
    const std::optional<RepairDecision> decision = decide(each.aim, each.view);
    EXPECT_EQ(decision ? decision->encoded() : "", each.decision) << each.what;
  }
}

TEST(RepairAgreement, RejectsDifferentCallsImmediately) {
  const auto decision = decide(kGrow, {survivor(kGrow), silent(), survivor(kShrink)});
  ASSERT_TRUE(decision && decision->rejection);
  EXPECT_EQ(decision->rejection->code, Code::kAborted);
  EXPECT_NE(decision->rejection->message.find("rank 0 calls grow, rank 2 calls shrink"),
            std::string::npos);
}

TEST(RepairAgreement, NamesMissingRanks) {
  const RepairView view = {survivor(kGrow), silent(), dead()};
  EXPECT_EQ(missing_text(kShrink, view), "rank 1 has not called shrink");
  EXPECT_EQ(missing_text(kGrow, view), "rank 1 has not called grow, rank 2 has not been restarted");
  EXPECT_NE(missing_text(kShrink, RepairView(40, silent())).find("24 more"), std::string::npos);
}

TEST(RepairAgreement, TheFirstRunningCallerPollsOften) {
  const RepairView view = {dead(), silent(), survivor(kShrink), survivor(kShrink)};
  EXPECT_TRUE(is_lowest_caller(view, 2));
  EXPECT_FALSE(is_lowest_caller(view, 3));
}

TEST(RepairAgreement, ADecisionSurvivesARoundTrip) {
  RepairDecision decision;
  decision.members = {{0, 0, false}, {7, 2, true}};
  const auto read = RepairDecision::decoded(decision.encoded());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->members, decision.members);
  EXPECT_EQ(read->position_of(7, 2), 1u);
  EXPECT_EQ(read->position_of(7, 1), std::nullopt);
  decision.rejection = Error{Code::kDeadlineExceeded, "rank 1 has not come", "call it there"};
  const auto rejected = RepairDecision::decoded(decision.encoded());
  ASSERT_TRUE(rejected.ok() && rejected->rejection);
  EXPECT_EQ(rejected->rejection->code, Code::kDeadlineExceeded);
  EXPECT_EQ(rejected->rejection->message, "rank 1 has not come");
  EXPECT_EQ(rejected->rejection->fix, "call it there");
  for (const char* const text : {"", "members", "members\n1", "members\nx 0 0", "members\n0 0 x",
                                 "who", "no x 1\nab", "no 4", "no 4 3\nab"}) {
    EXPECT_FALSE(RepairDecision::decoded(text).ok()) << text;
  }
}

TEST(RepairAgreement, AnErrorCanHaveSeveralLines) {
  RepairDecision decision;
  decision.rejection = Error{Code::kAborted, "two\nlines", "and\ntwo more"};
  const auto rejected = RepairDecision::decoded(decision.encoded());
  ASSERT_TRUE(rejected.ok() && rejected->rejection);
  EXPECT_EQ(rejected->rejection->message, "two\nlines");
  EXPECT_EQ(rejected->rejection->fix, "and\ntwo more");
}

TEST(RepairAgreement, AResultSurvivesARoundTrip) {
  RepairEnd end;
  end.is_formed = true;
  const auto formed = RepairEnd::decoded(end.encoded());
  ASSERT_TRUE(formed.ok());
  EXPECT_TRUE(formed->is_formed);
  for (const bool is_death : {false, true}) {
    end = {false, is_death, Error{Code::kUnavailable, "rank 1 died", ""}};
    const auto failed = RepairEnd::decoded(end.encoded());
    ASSERT_TRUE(failed.ok());
    EXPECT_FALSE(failed->is_formed);
    EXPECT_EQ(failed->is_death, is_death);
    EXPECT_EQ(failed->error.code, Code::kUnavailable);
    EXPECT_EQ(failed->error.message, "rank 1 died");
    EXPECT_EQ(failed->error.fix, "");
  }
  for (const char* const text : {"", "death", "formed ", "other 4 1\na"}) {
    EXPECT_FALSE(RepairEnd::decoded(text).ok()) << text;
  }
}

}  // namespace
}  // namespace ivy::comm::test
