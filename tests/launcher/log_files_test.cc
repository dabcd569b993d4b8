#include "launcher/screen/log_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace ivy {
namespace {

class LogFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-logs-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  static std::string content(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static std::size_t open_descriptors() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      (void)entry;
      ++count;
    }
    return count;
  }
  std::string root_;
};

TEST_F(LogFilesTest, NamesAreTheSameHereAndOnTheNodes) {
  EXPECT_EQ(log_folder("runs", "j", 2), "runs/j/2");
  EXPECT_EQ(log_file_name(27, 1), "rank00027.out");
  EXPECT_EQ(log_file_name(123456, 2), "rank123456.err");
}

TEST_F(LogFilesTest, WritesEachStreamByteForByte) {
  LogFiles files;
  EXPECT_FALSE(files.is_open());
  ASSERT_TRUE(files.open_all(root_ + "/new/runs", "job", 1, {0, 3}).ok());
  EXPECT_TRUE(files.is_open());
  EXPECT_EQ(files.path(3, 2), root_ + "/new/runs/job/1/rank00003.err");
  EXPECT_EQ(files.path(1, 1), "");
  const std::string odd("\0\r\n\xff\x1b[2J", 8);
  files.write(3, 2, odd);
  files.write(3, 2, "more");
  files.write(3, 1, "out");
  files.write(1, 1, "a rank without files");
  EXPECT_EQ(content(files.path(3, 2)), odd + "more");
  EXPECT_EQ(content(files.path(3, 1)), "out");
  EXPECT_EQ(content(files.path(0, 1)), "");
  EXPECT_EQ(files.complaint(), "");
}

TEST_F(LogFilesTest, AnEarlierRunsFilesAreEmptied) {
  LogFiles files;
  ASSERT_TRUE(files.open_all(root_, "job", 0, {0}).ok());
  files.write(0, 1, "old and long");
  ASSERT_TRUE(files.open_all(root_, "job", 0, {0}).ok());
  files.write(0, 1, "new");
  EXPECT_EQ(content(files.path(0, 1)), "new");
}

TEST_F(LogFilesTest, AClosedFileGetsNothingMoreAndKeepsItsName) {
  LogFiles files;
  ASSERT_TRUE(files.open_all(root_, "job", 0, {0}).ok());
  files.write(0, 1, "first");
  files.close(0, 1);
  files.close(0, 1);
  files.close(9, 1);
  files.write(0, 1, "second");
  EXPECT_EQ(content(files.path(0, 1)), "first");
  EXPECT_EQ(files.complaint(), "");
}

TEST_F(LogFilesTest, DescriptorsAreGivenBack) {
  const std::size_t before = open_descriptors();
  {
    LogFiles files;
    ASSERT_TRUE(files.open_all(root_, "job", 0, {0, 1, 2}).ok());
    EXPECT_EQ(open_descriptors(), before + 6);
    files.close(1, 2);
    EXPECT_EQ(open_descriptors(), before + 5);
    ASSERT_TRUE(files.open_all(root_, "job", 1, {0}).ok());
    EXPECT_EQ(open_descriptors(), before + 2);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(LogFilesTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(root_ + "/file") << "x";
  LogFiles files;
  const Result<void> opened = files.open_all(root_ + "/file", "job", 0, {0});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("--log-dir: make folder " + root_ + "/file/job/0"),
            std::string::npos)
      << opened.error().message;
  EXPECT_NE(opened.error().fix.find("--log-dir DIR"), std::string::npos);
  EXPECT_FALSE(files.is_open());
}

TEST_F(LogFilesTest, TooFewDescriptorsIsOneErrorAndLeavesNoneOpen) {
  const std::size_t before = open_descriptors();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit few = old;
  few.rlim_cur = before + 8;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  LogFiles files;
  std::vector<int> ranks;
  for (int rank = 0; rank < 64; ++rank) ranks.push_back(rank);
  const Result<void> opened = files.open_all(root_, "job", 0, ranks);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kResourceExhausted);
  EXPECT_EQ(opened.error().fix, "raise the limit of open files: ulimit -n");
  EXPECT_FALSE(files.is_open());
  EXPECT_EQ(open_descriptors(), before);
}

// /dev/full takes nothing, as a full disk.
TEST_F(LogFilesTest, AFullDiskIsOneComplaintAndEndsThatFileOnly) {
  std::filesystem::create_directories(root_ + "/job/0");
  std::filesystem::create_symlink("/dev/full", root_ + "/job/0/rank00000.out");
  std::filesystem::create_symlink("/dev/full", root_ + "/job/0/rank00001.out");
  LogFiles files;
  ASSERT_TRUE(files.open_all(root_, "job", 0, {0, 1}).ok());
  files.write(0, 1, "x");
  const std::string complaint = files.complaint();
  EXPECT_NE(complaint.find("rank00000.out: No space left on device"), std::string::npos)
      << complaint;
  files.write(0, 1, "x");
  files.write(1, 1, "x");
  EXPECT_EQ(files.complaint(), complaint);
  files.write(0, 2, "y");
  EXPECT_EQ(content(files.path(0, 2)), "y");
}

}  // namespace
}  // namespace ivy
