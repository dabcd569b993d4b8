// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/rank_file_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "tests/support/resource_limit.h"

namespace ivy {
namespace {

class RankFileSetTest : public ::testing::Test {
 protected:
  // The tests poll take_done() instead.
  struct Owner final : FileEvents {
    void file_progressed() override {}
  };
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
  // Opens the files and waits for the result.
  static Result<void> open_all(RankFileSet& files, const std::string& directory,
                               std::uint32_t generation, const std::vector<int>& ranks) {
    std::optional<Result<void>> opened;
    RankFileSet::Request request{.flag = "--log-dir"};
    const std::string folder = log_folder(directory, "job", generation) + "/";
    for (const int rank : ranks)
      request.paths[rank] = {folder + log_file_name(rank, 1), folder + log_file_name(rank, 2)};
    files.open_all(request, [&](const Result<void>& result) { opened = result; });
    const bool is_known = eventually([&] {
      files.take_done();
      return opened.has_value();
    });
    EXPECT_TRUE(is_known);
    return opened.value_or(Error{Code::kDeadlineExceeded, "no answer"});
  }
  // Waits until everything has been written.
  static void settle(RankFileSet& files) {
    const bool is_idle = eventually([&] { return files.is_idle(); });
    EXPECT_TRUE(is_idle);
    files.take_done();
  }
  static bool eventually(const std::function<bool()>& condition) {
    for (int tries = 0; tries < 6000 && !condition(); ++tries) usleep(10'000);
    return condition();
  }
  std::string root_;
  Owner owner_;
};

TEST_F(RankFileSetTest, NamesFoldersAndFiles) {
  EXPECT_EQ(log_folder("runs", "j", 2), "runs/j/2");
  EXPECT_EQ(log_file_name(27, 1), "rank00027.out");
  EXPECT_EQ(log_file_name(123456, 2), "rank123456.err");
}

TEST_F(RankFileSetTest, WritesEachStreamByteForByte) {
  RankFileSet files(owner_);
  EXPECT_FALSE(files.is_open());
  ASSERT_TRUE(open_all(files, root_ + "/new/runs", 1, {0, 3}).ok());
  EXPECT_TRUE(files.is_open());
  EXPECT_EQ(files.path(3, 2), root_ + "/new/runs/job/1/rank00003.err");
  EXPECT_EQ(files.path(1, 1), "");
  const std::string odd("\0\r\n\xff\x1b[2J", 8);
  files.write(3, 2, odd);
  files.write(3, 2, "more");
  files.write(3, 1, "out");
  files.write(1, 1, "a rank without files");
  settle(files);
  EXPECT_EQ(content(files.path(3, 2)), odd + "more");
  EXPECT_EQ(content(files.path(3, 1)), "out");
  EXPECT_EQ(content(files.path(0, 1)), "");
  EXPECT_EQ(files.write_error(), "");
}

TEST_F(RankFileSetTest, WritesBothStreamsToOneFile) {
  RankFileSet files(owner_);
  std::optional<Result<void>> opened;
  const std::string path = root_ + "/a/both";
  files.open_all({.flag = "--output", .paths = {{0, {path, path}}}},
                 [&](const Result<void>& result) { opened = result; });
  ASSERT_TRUE(eventually([&] {
    files.take_done();
    return opened.has_value();
  }));
  EXPECT_TRUE(opened->ok());
  files.write(0, 1, "one ");
  files.close(0, 1);
  files.write(0, 2, "two");
  files.close(0, 2);
  settle(files);
  EXPECT_EQ(content(path), "one two");
}

TEST_F(RankFileSetTest, TruncatesFilesOfAnEarlierRun) {
  RankFileSet files(owner_);
  ASSERT_TRUE(open_all(files, root_, 0, {0}).ok());
  files.write(0, 1, "old and long");
  ASSERT_TRUE(open_all(files, root_, 0, {0}).ok());
  files.write(0, 1, "new");
  settle(files);
  EXPECT_EQ(content(files.path(0, 1)), "new");
}

TEST_F(RankFileSetTest, WritesNothingToAClosedFile) {
  RankFileSet files(owner_);
  ASSERT_TRUE(open_all(files, root_, 0, {0}).ok());
  files.write(0, 1, "first");
  files.close(0, 1);
  files.close(0, 1);
  files.close(9, 1);
  files.write(0, 1, "second");
  settle(files);
  EXPECT_EQ(content(files.path(0, 1)), "first");
  EXPECT_EQ(files.write_error(), "");
}

TEST_F(RankFileSetTest, ReleasesDescriptors) {
  const std::size_t before = open_descriptors();
  {
    RankFileSet files(owner_);
    ASSERT_TRUE(open_all(files, root_, 0, {0, 1, 2}).ok());
    EXPECT_EQ(open_descriptors(), before + 6);
    files.close(1, 2);
    settle(files);
    EXPECT_EQ(open_descriptors(), before + 5);
    ASSERT_TRUE(open_all(files, root_, 1, {0}).ok());
    EXPECT_EQ(open_descriptors(), before + 2);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }));
}

TEST_F(RankFileSetTest, NamesAFolderThatCannotBeMade) {
  std::ofstream(root_ + "/file") << "x";
  RankFileSet files(owner_);
  const Result<void> opened = open_all(files, root_ + "/file", 0, {0});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("--log-dir: create directory " + root_ + "/file/job/0"),
            std::string::npos)
      << opened.error().message;
  EXPECT_NE(opened.error().fix.find("--log-dir DIR"), std::string::npos);
  EXPECT_FALSE(files.is_open());
}

TEST_F(RankFileSetTest, ReportsTooFewDescriptorsOnceAndClosesAll) {
  const std::size_t before = open_descriptors();
  std::optional<test::ResourceLimit> few(std::in_place, RLIMIT_NOFILE, before + 8);
  RankFileSet files(owner_);
  std::vector<int> ranks;
  for (int rank = 0; rank < 64; ++rank) ranks.push_back(rank);
  const Result<void> opened = open_all(files, root_, 0, ranks);
  settle(files);
  few.reset();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kResourceExhausted);
  EXPECT_EQ(opened.error().fix, "raise the limit of open files: ulimit -n");
  EXPECT_FALSE(files.is_open());
  EXPECT_EQ(open_descriptors(), before);
}

// A limit of the file size has the same effect as a full disk.
TEST_F(RankFileSetTest, ReportsAFullDiskOnceAndClosesOnlyThatFile) {
  std::signal(SIGXFSZ, SIG_IGN);
  RankFileSet files(owner_);
  ASSERT_TRUE(open_all(files, root_, 0, {0, 1}).ok());
  std::optional<test::ResourceLimit> few_bytes(std::in_place, RLIMIT_FSIZE, 4);
  files.write(0, 1, "too long");
  settle(files);
  const std::string write_error = files.write_error();
  files.write(0, 1, "x");
  files.write(1, 1, "too long");
  files.write(0, 2, "y");
  settle(files);
  few_bytes.reset();
  EXPECT_NE(write_error.find("rank00000.out: File too large"), std::string::npos) << write_error;
  EXPECT_EQ(files.write_error(), write_error);
  EXPECT_EQ(content(files.path(0, 1)), "too ");
  EXPECT_EQ(content(files.path(0, 2)), "y");
}

// The pipe is not read: it stands for a file system whose server is unreachable.
TEST_F(RankFileSetTest, KeepsRunningIfTheFileSystemStalls) {
  std::filesystem::create_directories(root_ + "/job/0");
  const std::string path = root_ + "/job/0/rank00000.out";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  RankFileSet files(owner_);
  ASSERT_TRUE(open_all(files, root_, 0, {0}).ok());
  const std::string chunk(1u << 20, 'x');
  std::size_t given = 0;
  for (; files.has_room() && given < 4 * RankFileSet::kMaxQueuedBytes; given += chunk.size())
    files.write(0, 1, chunk);
  EXPECT_GE(given, RankFileSet::kMaxQueuedBytes);
  EXPECT_LT(given, 2 * RankFileSet::kMaxQueuedBytes);
  EXPECT_FALSE(files.is_idle());
  files.close(0, 1);
  std::size_t read_bytes = 0;
  EXPECT_TRUE(eventually([&] {
    char buffer[65536];
    for (ssize_t count = 0; (count = read(reader, buffer, sizeof buffer)) > 0;)
      read_bytes += static_cast<std::size_t>(count);
    return read_bytes == given;
  }));
  settle(files);
  EXPECT_EQ(files.written(), given);
  EXPECT_EQ(files.write_error(), "");
  close(reader);
}

TEST_F(RankFileSetTest, DoesNotFollowAPlantedLink) {
  std::filesystem::create_directories(root_ + "/job/0");
  std::ofstream(root_ + "/victim") << "precious";
  std::filesystem::create_symlink(root_ + "/victim", root_ + "/job/0/rank00000.out");
  RankFileSet files(owner_);
  const Result<void> opened = open_all(files, root_, 0, {0});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("rank00000.out"), std::string::npos)
      << opened.error().message;
  EXPECT_EQ(content(root_ + "/victim"), "precious");
}

}  // namespace
}  // namespace ivy
