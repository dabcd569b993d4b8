#include "launcher/job/waiting_line.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using std::chrono::seconds;

TEST(WaitingLineTest, FoldsHostsThatDoTheSame) {
  const std::string line = waiting_line(29, 32, seconds(12),
                                        {{"node07", "ssh: connecting"},
                                         {"node19", "ssh: connecting"},
                                         {"node31", "sending ivy-node"}});
  EXPECT_EQ(line,
            "hosts 29/32 up after 12 s, waiting for node31 (sending ivy-node), node[07,19] "
            "(ssh: connecting)");
}

TEST(WaitingLineTest, WritesAtMostFourGroups) {
  std::vector<WaitingHost> waiting;
  for (int i = 0; i < 6; ++i)
    waiting.push_back({"h" + std::to_string(i), "doing" + std::to_string(i)});
  const std::string line = waiting_line(0, 6, seconds(5), waiting);
  EXPECT_NE(line.find("h3"), std::string::npos);
  EXPECT_EQ(line.find("h4"), std::string::npos);
  EXPECT_TRUE(line.ends_with(", ...")) << line;
}

TEST(WaitingLineTest, SaysNothingOfDoingWhenNothingIsKnown) {
  EXPECT_EQ(waiting_line(1, 2, seconds(7), {{"a", ""}}), "hosts 1/2 up after 7 s, waiting for a");
}

}  // namespace
}  // namespace ivy
