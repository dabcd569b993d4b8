// Raw log files of ranks, on a full disk too.
#include "agent/node/rank_log.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace ivy {
namespace {

class RankLogTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-rank-log-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string root_;
};

TEST_F(RankLogTest, WritesRawBytesUnderJobAndGeneration) {
  Result<RankLog> log = RankLog::open({root_ + "/logs", "job", 2, 27, 1});
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_EQ(log->path(), root_ + "/logs/job/2/rank00027.out");
  EXPECT_TRUE(log->write(std::string("a\0\n", 3)).ok());
  EXPECT_TRUE(log->write("b").ok());
  EXPECT_EQ(content(log->path()), std::string("a\0\nb", 4));
}

TEST_F(RankLogTest, OverwritesAnOlderFile) {
  const RankLog::Name name{root_, "job", 0, 3, 2};
  ASSERT_TRUE(RankLog::open(name)->write("older and longer").ok());
  ASSERT_TRUE(RankLog::open(name)->write("new").ok());
  EXPECT_EQ(content(root_ + "/job/0/rank00003.err"), "new");
}

TEST_F(RankLogTest, SaysOnceThatTheDiskIsFull) {
  std::filesystem::create_directories(root_ + "/job/0");
  ASSERT_EQ(symlink("/dev/full", (root_ + "/job/0/rank00000.out").c_str()), 0);
  Result<RankLog> log = RankLog::open({root_, "job", 0, 0, 1});
  ASSERT_TRUE(log.ok()) << log.error().message;
  const Result<void> first = log->write("lost");
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, Code::kResourceExhausted);
  EXPECT_NE(first.error().message.find("No space left"), std::string::npos);
  EXPECT_TRUE(log->write("ignored").ok());
}

TEST_F(RankLogTest, NamesADirectoryThatCannotBeMade) {
  const Result<RankLog> log = RankLog::open({"/proc/nowhere", "job", 0, 0, 1});
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.error().message.find("/proc/nowhere/job/0"), std::string::npos);
}

}  // namespace
}  // namespace ivy
