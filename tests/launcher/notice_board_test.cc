// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/notice_board.h"

#include <gtest/gtest.h>

#include "launcher/slurm/drain_watch.h"

namespace ivy {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

Notice spot(std::size_t host, std::int64_t at_s, std::optional<std::int64_t> deadline_s) {
  Notice notice{host, "AWS", "spot interruption"};
  if (deadline_s) notice.deadline_ns = *deadline_s * kSecond;
  notice.at_ns = at_s * kSecond;
  return notice;
}

// Both hosts have ranks; the job can do without the second one.
const std::vector<NoticeHost> kHosts = {{true, false}, {true, true}};

struct Board : NoticeBoard {
  explicit Board(bool signals_on_advice = false) : NoticeBoard(25 * kSecond, signals_on_advice) {}
  NoticeStep at(std::int64_t now_s) { return due(kHosts, now_s * kSecond); }
};

TEST(NoticeBoard, SignalsOnceAndStopsBeforeTheDeadline) {
  Board board;
  EXPECT_EQ(board.at(0), NoticeStep::kNothing);
  EXPECT_TRUE(board.add(spot(1, 10, 130)));
  EXPECT_FALSE(board.add(spot(1, 11, 130))) << "the same notice again";
  EXPECT_EQ(board.at(10), NoticeStep::kSignal);
  board.signalled(10 * kSecond);
  EXPECT_EQ(board.at(10), NoticeStep::kNothing);
  EXPECT_EQ(board.stop_at_ns(kHosts), 115 * kSecond);
  EXPECT_EQ(board.at(114), NoticeStep::kNothing);
  EXPECT_EQ(board.at(115), NoticeStep::kStop);
}

TEST(NoticeBoard, LeavesAQuarterOfAShortNoticeForTheStop) {
  Board board;
  board.add(spot(0, 0, 20));
  board.signalled(0);
  EXPECT_EQ(board.stop_at_ns(kHosts), 15 * kSecond);
}

TEST(NoticeBoard, StopsAtOnceAfterAnExpiredDeadline) {
  Board board;
  board.add(spot(0, 10, 5));
  EXPECT_EQ(board.at(10), NoticeStep::kSignal);
  board.signalled(10 * kSecond);
  EXPECT_EQ(board.at(10), NoticeStep::kStop);
}

TEST(NoticeBoard, SendsOneSignalForTwoNotices) {
  Board board;
  board.add(spot(0, 0, 120));
  board.signalled(0);
  board.add(spot(1, 5, 60));
  EXPECT_EQ(board.at(5), NoticeStep::kNothing);
  EXPECT_EQ(board.stop_at_ns(kHosts), (60 - 13) * kSecond - 750'000'000) << "the earlier deadline";
  EXPECT_EQ(board.binding(kHosts).size(), 2u);
}

TEST(NoticeBoard, GivesTheOtherRanksTheNoticeTimeAfterTheFirstExit) {
  Board board;
  board.add(spot(1, 0, 600));
  board.rank_exited(0);
  board.signalled(0);
  EXPECT_EQ(board.stop_at_ns(kHosts), 585 * kSecond);
  board.rank_exited(3 * kSecond);
  board.rank_exited(9 * kSecond);
  EXPECT_EQ(board.stop_at_ns(kHosts), 28 * kSecond);
}

TEST(NoticeBoard, TakesNoticesWithoutADeadlineAsAdvice) {
  Board board;
  board.add(spot(0, 0, std::nullopt));
  EXPECT_EQ(board.at(0), NoticeStep::kNothing) << "the job needs the host";
  EXPECT_TRUE(board.binding(kHosts).empty());
  board.add(spot(1, 0, std::nullopt));
  EXPECT_EQ(board.at(0), NoticeStep::kSignal);
  board.signalled(0);
  EXPECT_EQ(board.stop_at_ns(kHosts), 25 * kSecond);
  ASSERT_EQ(board.binding(kHosts).size(), 1u);
  EXPECT_EQ(board.binding(kHosts).front().host, 1u);
}

TEST(NoticeBoard, SignalsOnAdviceIfTheUserHasChosenASignal) {
  Board board(/*signals_on_advice=*/true);
  board.add(spot(0, 0, std::nullopt));
  EXPECT_EQ(board.at(0), NoticeStep::kSignal);
  board.signalled(0);
  EXPECT_EQ(board.at(100), NoticeStep::kNothing);
  // The ranks run on, so a later notice is another wave.
  board.add(spot(1, 200, 320));
  EXPECT_EQ(board.at(200), NoticeStep::kSignal);
}

TEST(NoticeBoard, DoesNotStopAfterTheNoticeIsWithdrawn) {
  Board board;
  board.add(spot(1, 0, 120));
  board.signalled(0);
  EXPECT_FALSE(board.withdraw(1, "AWS", "rebalance recommendation"));
  EXPECT_TRUE(board.withdraw(1, "AWS", "spot interruption"));
  EXPECT_TRUE(board.empty());
  EXPECT_EQ(board.at(120), NoticeStep::kNothing);
  EXPECT_FALSE(board.withdraw(1, "AWS", "spot interruption"));
}

TEST(NoticeBoard, ForgetsAHostAndItsWave) {
  Board board;
  board.add(spot(0, 0, 120));
  board.add(spot(1, 0, 120));
  board.signalled(0);
  board.forget(1);
  board.end_wave();
  EXPECT_EQ(board.stop_at_ns(kHosts), std::nullopt);
  ASSERT_EQ(board.binding(kHosts).size(), 1u);
  EXPECT_EQ(board.at(30), NoticeStep::kSignal) << "for the ranks of the next attempt";
}

TEST(NoticeBoard, LimitsTheNoticesOfAHost) {
  Board board;
  int added = 0;
  for (int i = 0; i < 100; ++i) {
    Notice notice = spot(0, 0, 60);
    notice.reason = std::to_string(i);
    added += board.add(notice) ? 1 : 0;
  }
  EXPECT_EQ(added, 16);
}

TEST(NoticeText, NamesHostTimeAndReason) {
  EXPECT_EQ(notice_text(spot(0, 0, 120), "node02", 0),
            "node02 will be stopped in 120 s (AWS: spot interruption)");
  EXPECT_EQ(notice_text(spot(0, 0, 5), "node02", 9 * kSecond),
            "node02 will be stopped in 0 s (AWS: spot interruption)");
  EXPECT_EQ(notice_text({0, "Slurm", "drain: bad disk"}, "node02", 0),
            "node02 should be left, it has no deadline (Slurm: drain: bad disk)");
}

TEST(DrainedNodes, AreReadFromTheOutputOfSinfo) {
  const DrainedNodes nodes = parse_drained_nodes(
      "n1|bad disk | see ticket 7\nn1|bad disk | see ticket 7\nn2|none\n\nslurm_load_partitions: "
      "x\n|y");
  EXPECT_EQ(nodes, (DrainedNodes{{"n1", "bad disk | see ticket 7"}, {"n2", ""}}));
  EXPECT_TRUE(parse_drained_nodes("").empty());
}

}  // namespace
}  // namespace ivy
