// SPDX-License-Identifier: Apache-2.0
// The events that wait for a launcher are bounded, but exits are never dropped.
#include "agent/node/workers/event_budget.h"

#include <gtest/gtest.h>

#include <string>

namespace ivy {
namespace {

Event rank_update(std::uint32_t rank) {
  Event event;
  event.mutable_rank_updates()->add_ranks()->set_rank(rank);
  return event;
}

Event exited(std::uint32_t rank, std::size_t words) {
  Event event;
  event.mutable_exited()->set_rank(rank);
  event.mutable_exited()->set_code(3);
  event.mutable_exited()->set_error_file(std::string(words, 'x'));
  return event;
}

// A launcher that acknowledges nothing.
struct DeafLauncher {
  EventBudget budget;
  std::uint64_t waiting_bytes = 0;
  std::optional<std::string> tell(const Event& event) {
    const std::optional<std::string> bytes = budget.admit(event, waiting_bytes);
    if (bytes) waiting_bytes += bytes->size();
    return bytes;
  }
};

TEST(EventBudgetTest, LimitsTheShareOfRankUpdates) {
  DeafLauncher launcher;
  launcher.budget.keep_for_takeover();
  for (int i = 0; i < 2'000'000; ++i) launcher.tell(rank_update(70'000));
  EXPECT_LE(launcher.waiting_bytes, EventBudget::kMaxUpdateBytes);
  EXPECT_TRUE(launcher.budget.kept().empty()) << "a new launcher gets only the newest";
  EXPECT_TRUE(launcher.budget.holds_updates());
  // An exit is sent nevertheless.
  EXPECT_TRUE(launcher.tell(exited(1, 10)));

  EXPECT_FALSE(launcher.budget.take_held_updates(launcher.waiting_bytes));
  EXPECT_TRUE(launcher.budget.take_held_updates(0)) << "the launcher is back";
  EXPECT_FALSE(launcher.budget.take_held_updates(0)) << "sent once";
  EXPECT_TRUE(launcher.budget.admit(rank_update(1), 0));
}

TEST(EventBudgetTest, LimitsReportsSoThatExitsHaveRoom) {
  DeafLauncher launcher;
  Event report;
  report.mutable_rank_updates()->add_reports()->set_text(std::string(500, 'x'));
  for (int i = 0; i < 200'000; ++i) launcher.tell(report);
  EXPECT_LE(launcher.waiting_bytes, EventBudget::kMaxTextBytes);
  for (std::uint32_t rank = 0; rank < 4096; ++rank)
    ASSERT_TRUE(launcher.tell(exited(rank, 64u << 10)));
  EXPECT_LT(launcher.waiting_bytes, session::kMaxUnacknowledgedBytes);
}

TEST(EventBudgetTest, CanSendAllKeptEventsAfterATakeover) {
  EventBudget budget;
  budget.keep_for_takeover();
  // Each is acknowledged immediately, so nothing ever waits.
  for (std::uint32_t rank = 0; rank < 4096; ++rank) {
    const std::optional<std::string> bytes = budget.admit(exited(rank, 64u << 10), 0);
    ASSERT_TRUE(bytes);
    EXPECT_GT(bytes->size(), 64u << 10);
  }
  ASSERT_EQ(budget.kept().size(), 4096u);
  std::uint64_t kept_bytes = 0;
  for (const std::string& bytes : budget.kept()) kept_bytes += bytes.size();
  EXPECT_LT(kept_bytes, session::kMaxUnacknowledgedBytes);
  budget.forget_kept();
  EXPECT_TRUE(budget.kept().empty());
}

}  // namespace
}  // namespace ivy
