// SPDX-License-Identifier: Apache-2.0
// Raw log files of ranks, also on a full disk.
#include "agent/node/workers/node_rank_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "tests/support/resource_limit.h"

namespace ivy {
namespace {

class NodeRankFileTest : public testing::Test {
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
  // Returns errno of the first call that failed, or 0.
  int first_error() {
    EXPECT_TRUE(writer_.wait_idle(std::chrono::minutes(1)));
    for (const FileWriter::Done& done : writer_.take_done())
      if (done.errno_value != 0) return done.errno_value;
    return 0;
  }
  std::string root_;
  FileWriter writer_{1 << 20, nullptr};
};

TEST_F(NodeRankFileTest, WritesRawBytesUnderJobAndGeneration) {
  NodeRankFile log(writer_, {root_ + "/logs", "job", 2, 27, 1});
  EXPECT_EQ(log.path(), root_ + "/logs/job/2/rank00027.out");
  log.write(std::string("a\0\n", 3));
  log.write("b");
  EXPECT_EQ(first_error(), 0);
  EXPECT_EQ(content(log.path()), std::string("a\0\nb", 4));
}

TEST_F(NodeRankFileTest, OverwritesAnOlderFile) {
  const NodeRankFile::Name name{root_, "job", 0, 3, 2};
  NodeRankFile(writer_, name).write("older and longer");
  NodeRankFile(writer_, name).write("new");
  EXPECT_EQ(first_error(), 0);
  EXPECT_EQ(content(root_ + "/job/0/rank00003.err"), "new");
}

// A limit of the file size has the same effect as a full disk.
TEST_F(NodeRankFileTest, ReportsAFullDisk) {
  std::signal(SIGXFSZ, SIG_IGN);
  std::optional<test::ResourceLimit> no_bytes(std::in_place, RLIMIT_FSIZE, 0);
  NodeRankFile(writer_, {root_, "job", 0, 0, 1}).write("lost");
  const int error = first_error();
  no_bytes.reset();
  EXPECT_EQ(error, EFBIG);
}

TEST_F(NodeRankFileTest, DoesNotFollowALinkInsteadOfAFile) {
  std::filesystem::create_directories(root_ + "/job/0");
  const std::string target = root_ + "/precious";
  ASSERT_TRUE(std::ofstream(target) << "kept");
  ASSERT_EQ(symlink(target.c_str(), (root_ + "/job/0/rank00000.out").c_str()), 0);
  NodeRankFile(writer_, {root_, "job", 0, 0, 1}).write("lost");
  EXPECT_EQ(first_error(), ELOOP);
  EXPECT_EQ(std::filesystem::file_size(target), 4u);
}

TEST_F(NodeRankFileTest, ReportsADirectoryThatCannotBeMade) {
  NodeRankFile(writer_, {"/proc/nowhere", "job", 0, 0, 1}).write("lost");
  EXPECT_EQ(first_error(), ENOENT);
}

}  // namespace
}  // namespace ivy
