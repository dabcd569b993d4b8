// SPDX-License-Identifier: Apache-2.0
// The events of remote ranks that each host receives.
#include "launcher/job/ranks/rank_event_log.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using comm_status::RankState;

RankUpdate rank_update(std::uint32_t rank, RankState state, int code = 0) {
  RankUpdate updates;
  updates.set_rank(rank);
  updates.set_state(static_cast<std::uint32_t>(state));
  updates.set_code(code);
  return updates;
}

RankUpdates updates_of(std::uint32_t generation, std::initializer_list<RankUpdate> ranks,
                       bool listening = false) {
  RankUpdates updates;
  updates.set_generation(generation);
  updates.set_listening(listening);
  for (const RankUpdate& rank : ranks) *updates.add_ranks() = rank;
  return updates;
}

class RankEventLogTest : public testing::Test {
 protected:
  // Host 0 has ranks 0, 1, 3 and 5, host 1 has rank 2, host 2 rank 4.
  RankEventLogTest() { log_.begin(3, kHostOfRank); }
  static inline const std::vector<std::size_t> kHostOfRank = {0, 0, 1, 0, 2, 0};
  // Returns rank=state/code for each, for instance "1=3/9 4=2/0".
  std::string next_for(std::size_t host) {
    std::string text;
    const auto updates = log_.next_for(host);
    for (int i = 0; updates && i < updates->ranks_size(); ++i)
      text += (i == 0 ? "" : " ") + std::to_string(updates->ranks(i).rank()) + "=" +
              std::to_string(updates->ranks(i).state()) + "/" +
              std::to_string(updates->ranks(i).code());
    return text;
  }
  RankEventLog log_;
};

TEST_F(RankEventLogTest, SendsNothingToHostsThatDoNotListen) {
  EXPECT_TRUE(log_.worker_ended(0, rank_update(0, RankState::kExited)));
  EXPECT_TRUE(log_.listeners().empty());
  EXPECT_EQ(next_for(1), "");
}

TEST_F(RankEventLogTest, SendsANewListenerAllEventsOnce) {
  log_.worker_ended(0, rank_update(0, RankState::kSignalled, 9));
  log_.worker_ended(1, rank_update(2, RankState::kExited, 1));
  EXPECT_TRUE(log_.receive(1, updates_of(3, {}, true)));
  EXPECT_TRUE(log_.is_urgent());
  EXPECT_EQ(next_for(1), "0=3/9") << "a host knows its own ranks";
  EXPECT_EQ(next_for(1), "");
  log_.worker_ended(0, rank_update(1, RankState::kExited, 7));
  EXPECT_EQ(next_for(1), "1=2/7");
}

TEST_F(RankEventLogTest, TreatsAnExitAfterLeavingAsNotUrgent) {
  log_.receive(1, updates_of(3, {}, true));
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kLeft)})));
  EXPECT_FALSE(log_.is_urgent());
  EXPECT_FALSE(log_.worker_ended(0, rank_update(0, RankState::kExited)));
  EXPECT_FALSE(log_.rank_lost(0, 0, RankState::kHostLost));
  EXPECT_EQ(next_for(1), "0=1/0");
  // Another process of the rank has attached.
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kAlive)})));
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kSignalled, 9)})));
  EXPECT_EQ(next_for(1), "0=0/0 0=3/9");
}

TEST_F(RankEventLogTest, DoesNotTakeAShellsExitForThatOfTheProcessBelowIt) {
  log_.receive(1, updates_of(3, {}, true));
  log_.receive(0, updates_of(3, {rank_update(0, RankState::kAlive)}, true));
  EXPECT_FALSE(log_.worker_ended(0, rank_update(0, RankState::kExited)));
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kDied)})));
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kSignalled, 9)})));
  EXPECT_FALSE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kExited, 1)})));
  EXPECT_EQ(next_for(1), "0=4/0 0=3/9");
}

TEST_F(RankEventLogTest, ReportsASecondDeathOfARestartedRank) {
  log_.receive(1, updates_of(3, {}, true));
  log_.worker_ended(0, rank_update(0, RankState::kSignalled, 9));
  EXPECT_EQ(next_for(1), "0=3/9");
  EXPECT_FALSE(log_.rank_restarted(2, 0, 1, 11)) << "that host has no such rank";
  EXPECT_TRUE(log_.rank_restarted(0, 0, 1, 11));
  const auto updates = log_.next_for(1);
  ASSERT_TRUE(updates);
  EXPECT_EQ(updates->ranks(0).state(), static_cast<std::uint32_t>(RankState::kAlive));
  EXPECT_EQ(updates->ranks(0).rejoins(), 1u);
  EXPECT_TRUE(log_.worker_ended(0, rank_update(0, RankState::kExited, 4)));
  EXPECT_EQ(next_for(1), "0=2/4");
}

TEST_F(RankEventLogTest, ReportsADeathOnce) {
  log_.receive(1, updates_of(3, {}, true));
  EXPECT_TRUE(log_.receive(0, updates_of(3, {rank_update(0, RankState::kSignalled, 9)})));
  EXPECT_FALSE(log_.worker_ended(0, rank_update(0, RankState::kSignalled, 9)));
  EXPECT_FALSE(log_.rank_lost(0, 0, RankState::kHostLost));
  EXPECT_EQ(next_for(1), "0=3/9");
}

TEST_F(RankEventLogTest, IgnoresOtherGenerations) {
  EXPECT_FALSE(log_.receive(0, updates_of(2, {rank_update(0, RankState::kDied)}, true)));
  log_.receive(0, updates_of(3, {rank_update(0, RankState::kDied)}, true));
  log_.begin(4, kHostOfRank);
  EXPECT_TRUE(log_.listeners().empty());
  log_.receive(1, updates_of(4, {}, true));
  EXPECT_EQ(next_for(1), "");
}

TEST_F(RankEventLogTest, TrustsAHostOnlyForItsOwnRanks) {
  log_.receive(2, updates_of(3, {}, true));
  EXPECT_FALSE(log_.receive(
      1, updates_of(3, {rank_update(0, RankState::kDied), rank_update(6, RankState::kDied),
                        rank_update(4'000'000'000, RankState::kDied)})));
  EXPECT_FALSE(log_.worker_ended(1, rank_update(0, RankState::kExited)));
  EXPECT_FALSE(log_.rank_lost(1, 0, RankState::kHostLost));
  RankUpdates report = updates_of(3, {});
  report.add_reports()->set_reporter(0);
  EXPECT_FALSE(log_.receive(1, report));
  EXPECT_FALSE(log_.next_for(2).has_value());
  report.mutable_reports(0)->set_reporter(2);
  EXPECT_TRUE(log_.receive(1, report));
  EXPECT_TRUE(log_.receive(1, updates_of(3, {rank_update(2, RankState::kDied)})));
  EXPECT_EQ(next_for(2), "2=4/0");
}

TEST_F(RankEventLogTest, SendsLateHostsOnlyTheLatestState) {
  log_.receive(1, updates_of(3, {}, true));
  log_.receive(0, updates_of(3, {rank_update(5, RankState::kSignalled, 9)}));
  for (std::size_t i = 0; i < 4 * RankEventLog::kMaxReports; ++i) {
    log_.receive(0, updates_of(3, {rank_update(0, RankState::kLeft)}));
    log_.receive(0, updates_of(3, {rank_update(0, RankState::kAlive)}));
    log_.next_for(1);
    log_.mark_all_sent();
  }
  log_.receive(0, updates_of(3, {rank_update(0, RankState::kLeft)}));
  EXPECT_EQ(next_for(1), "0=1/0");
  log_.receive(2, updates_of(3, {}, true));
  const auto all = log_.next_for(2);
  ASSERT_TRUE(all);
  EXPECT_LT(all->ranks_size(), static_cast<int>(3 * RankEventLog::kMaxReports));
  EXPECT_EQ(all->ranks(0).rank(), 5u);
  EXPECT_EQ(all->ranks(all->ranks_size() - 1).state(),
            static_cast<std::uint32_t>(RankState::kLeft));
}

TEST_F(RankEventLogTest, ForwardsAllReportsAndKeepsTheLast) {
  log_.receive(1, updates_of(3, {}, true));
  std::size_t reported = 0;
  for (std::size_t i = 0; i < 5 * RankEventLog::kMaxReports; ++i) {
    RankUpdates updates = updates_of(3, {});
    updates.add_reports()->set_text(std::to_string(i));
    EXPECT_TRUE(log_.receive(0, updates));
    const auto next = log_.next_for(1);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->reports(0).text(), std::to_string(i));
    reported += static_cast<std::size_t>(next->reports_size());
    log_.mark_all_sent();
  }
  EXPECT_EQ(reported, 5 * RankEventLog::kMaxReports);
  log_.receive(2, updates_of(3, {}, true));
  const auto late = log_.next_for(2);
  ASSERT_TRUE(late);
  EXPECT_GE(late->reports_size(), static_cast<int>(RankEventLog::kMaxReports));
  EXPECT_LT(late->reports_size(), static_cast<int>(3 * RankEventLog::kMaxReports));
  EXPECT_EQ(late->reports(late->reports_size() - 1).text(),
            std::to_string(5 * RankEventLog::kMaxReports - 1));
}

}  // namespace
}  // namespace ivy
