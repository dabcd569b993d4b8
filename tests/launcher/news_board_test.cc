// Which host is told what of the others' ranks.
#include "launcher/news_board.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using comm_status::RankState;

RankNews rank_news(std::uint32_t rank, RankState state, int code = 0) {
  RankNews news;
  news.set_rank(rank);
  news.set_state(static_cast<std::uint32_t>(state));
  news.set_code(code);
  return news;
}

News news_of(std::uint32_t generation, std::initializer_list<RankNews> ranks,
             bool listening = false) {
  News news;
  news.set_generation(generation);
  news.set_listening(listening);
  for (const RankNews& rank : ranks) *news.add_ranks() = rank;
  return news;
}

class NewsBoardTest : public testing::Test {
 protected:
  NewsBoardTest() { board_.begin(3); }
  // "1=3/9 4=2/0": rank, state, code.
  std::string next_for(std::size_t host) {
    std::string text;
    const auto news = board_.next_for(host);
    for (int i = 0; news && i < news->ranks_size(); ++i)
      text += (i == 0 ? "" : " ") + std::to_string(news->ranks(i).rank()) + "=" +
              std::to_string(news->ranks(i).state()) + "/" + std::to_string(news->ranks(i).code());
    return text;
  }
  NewsBoard board_;
};

TEST_F(NewsBoardTest, NobodyIsToldWhoDoesNotListen) {
  EXPECT_TRUE(board_.worker_ended(0, rank_news(0, RankState::kExited)));
  EXPECT_TRUE(board_.listeners().empty());
  EXPECT_EQ(next_for(1), "");
}

TEST_F(NewsBoardTest, WhoBeginsToListenHearsEverythingOfTheOthersOnce) {
  board_.worker_ended(0, rank_news(0, RankState::kSignalled, 9));
  board_.worker_ended(1, rank_news(2, RankState::kExited, 1));
  EXPECT_TRUE(board_.take(1, news_of(3, {}, true)));
  EXPECT_TRUE(board_.is_urgent());
  EXPECT_EQ(next_for(1), "0=3/9") << "its own it knows";
  EXPECT_EQ(next_for(1), "");
  board_.worker_ended(0, rank_news(1, RankState::kExited, 7));
  EXPECT_EQ(next_for(1), "1=2/7");
}

TEST_F(NewsBoardTest, WhoHasLeftDiesNoMoreAndIsNoHurry) {
  board_.take(1, news_of(3, {}, true));
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kLeft)})));
  EXPECT_FALSE(board_.is_urgent());
  EXPECT_FALSE(board_.worker_ended(0, rank_news(0, RankState::kExited)));
  EXPECT_FALSE(board_.rank_lost(0, 0, RankState::kHostLost));
  EXPECT_EQ(next_for(1), "0=1/0");
  // Another process of it has attached.
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kAlive)})));
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kSignalled, 9)})));
  EXPECT_EQ(next_for(1), "0=0/0 0=3/9");
}

TEST_F(NewsBoardTest, AShellsEndIsNotTheEndOfTheProcessBelowIt) {
  board_.take(1, news_of(3, {}, true));
  board_.take(0, news_of(3, {rank_news(0, RankState::kAlive)}, true));
  EXPECT_FALSE(board_.worker_ended(0, rank_news(0, RankState::kExited)));
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kDied)})));
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kSignalled, 9)})));
  EXPECT_FALSE(board_.take(0, news_of(3, {rank_news(0, RankState::kExited, 1)})));
  EXPECT_EQ(next_for(1), "0=4/0 0=3/9");
}

TEST_F(NewsBoardTest, ADeathIsToldOnce) {
  board_.take(1, news_of(3, {}, true));
  EXPECT_TRUE(board_.take(0, news_of(3, {rank_news(0, RankState::kSignalled, 9)})));
  EXPECT_FALSE(board_.worker_ended(0, rank_news(0, RankState::kSignalled, 9)));
  EXPECT_FALSE(board_.rank_lost(0, 0, RankState::kHostLost));
  EXPECT_EQ(next_for(1), "0=3/9");
}

TEST_F(NewsBoardTest, NothingOfAnotherGenerationCounts) {
  EXPECT_FALSE(board_.take(0, news_of(2, {rank_news(0, RankState::kDied)}, true)));
  board_.take(0, news_of(3, {rank_news(0, RankState::kDied)}, true));
  board_.begin(4);
  EXPECT_TRUE(board_.listeners().empty());
  board_.take(1, news_of(4, {}, true));
  EXPECT_EQ(next_for(1), "");
}

TEST_F(NewsBoardTest, ReportsArePassedOnUpToALimit) {
  board_.take(1, news_of(3, {}, true));
  News news = news_of(3, {});
  news.add_reports()->set_text("rank 2 did not come");
  for (std::size_t i = 0; i < NewsBoard::kMaxReports + 10; ++i) board_.take(0, news);
  const auto told = board_.next_for(1);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->reports_size(), static_cast<int>(NewsBoard::kMaxReports));
  EXPECT_EQ(told->reports(0).text(), "rank 2 did not come");
  EXPECT_FALSE(board_.take(0, news));
}

}  // namespace
}  // namespace ivy
