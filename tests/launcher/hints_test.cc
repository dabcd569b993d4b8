#include "launcher/hints.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

WorkerEnd failed(int rank, const std::string& host, const std::string& tail) {
  WorkerEnd end;
  end.rank = rank;
  end.host = host;
  end.status.code = 1;
  end.stderr_tail = tail;
  return end;
}

TEST(HintsTest, PeerThatTimesOutAtLocalhostPointsAtTheScript) {
  const auto hint = overwritten_master_address(
      {failed(2, "b", "RuntimeError: connect() to [localhost]:29500 timed out")}, "a", "10.0.0.1");
  ASSERT_TRUE(hint.has_value());
  EXPECT_EQ(hint->severity, Severity::kWarning);
  EXPECT_NE(hint->what.find("rank 2"), std::string::npos);
  EXPECT_NE(hint->where.find("MASTER_ADDR=10.0.0.1"), std::string::npos);
}

TEST(HintsTest, OtherFailuresSayNothing) {
  EXPECT_FALSE(overwritten_master_address({failed(2, "b", "ValueError: no data at localhost")}, "a",
                                          "10.0.0.1"));
  EXPECT_FALSE(overwritten_master_address({failed(2, "b", "connect to 10.0.0.1 timed out")}, "a",
                                          "10.0.0.1"));
}

TEST(HintsTest, Host0MayTalkToItself) {
  EXPECT_FALSE(overwritten_master_address({failed(0, "a", "connect to localhost timed out")}, "a",
                                          "10.0.0.1"));
}

}  // namespace
}  // namespace ivy
