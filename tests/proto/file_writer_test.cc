// SPDX-License-Identifier: Apache-2.0
#include "proto/os/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ivy {
namespace {

constexpr std::chrono::seconds kTimeout(60);  // Nothing here takes that long.

class FileWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-file-writer-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    // As in all ivyrun programs.
    ASSERT_NE(signal(SIGPIPE, SIG_IGN), SIG_ERR);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  int create(const std::string& name) const {
    return ::open((root_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  }
  std::string content(const std::string& name) const {
    std::ifstream file(root_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_;
  std::atomic<int> calls_{0};
};

TEST_F(FileWriterTest, WritesEachFileInOrderAndReportsCompletion) {
  FileWriter writer(1 << 20, [this] { ++calls_; });
  const FileWriter::File first = writer.adopt(create("first"));
  const FileWriter::File second = writer.open([this] { return create("second"); });
  std::string expected;
  for (int line = 0; line < 1000; ++line) {
    const std::string text = std::to_string(line) + "\n";
    expected += text;
    writer.write(first, text);
    writer.write(second, text);
  }
  writer.close(first);
  writer.close(second);
  ASSERT_TRUE(writer.wait_idle(kTimeout));
  EXPECT_EQ(content("first"), expected);
  EXPECT_EQ(content("second"), expected);
  EXPECT_EQ(writer.queued_bytes(), 0u);

  std::size_t first_bytes = 0;
  const std::vector<FileWriter::Done> done = writer.take_done();
  for (const FileWriter::Done& one : done) {
    EXPECT_EQ(one.errno_value, 0);
    if (one.file == first) first_bytes += one.bytes;
  }
  EXPECT_EQ(first_bytes, expected.size());
  EXPECT_EQ(done.back().step, FileWriter::Step::kClose);
  EXPECT_EQ(done.back().file, second);
  EXPECT_EQ(static_cast<std::size_t>(calls_), done.size());
  EXPECT_TRUE(writer.take_done().empty());
}

// A pipe without a reader stands for a file system that does not respond.
TEST_F(FileWriterTest, ABlockingFileBlocksOnlyTheWriter) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  FileWriter writer(100'000, nullptr);
  const FileWriter::File file = writer.adopt(ends[1]);
  const std::string chunk(64'000, 'x');
  std::size_t sent = 0;
  while (writer.has_room() && sent < (64u << 20)) {
    writer.write(file, chunk);
    sent += chunk.size();
  }
  ASSERT_LT(sent, 64u << 20) << "the queue never filled up";
  EXPECT_FALSE(writer.is_idle());
  EXPECT_FALSE(writer.wait_idle(std::chrono::milliseconds(1)));

  std::size_t received = 0;
  std::string buffer(1 << 20, '\0');
  while (received < sent) {
    const ssize_t count = read(ends[0], buffer.data(), buffer.size());
    ASSERT_GT(count, 0);
    received += static_cast<std::size_t>(count);
  }
  EXPECT_TRUE(writer.wait_idle(kTimeout));
  EXPECT_TRUE(writer.has_room());
  ::close(ends[0]);
}

TEST_F(FileWriterTest, WaitsForANonBlockingDescriptor) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  FileWriter writer(1, nullptr);
  const FileWriter::File file = writer.adopt(ends[1]);
  const std::string text(1 << 20, 'x');
  writer.write(file, text);
  ASSERT_EQ(fcntl(ends[0], F_SETFL, 0), 0);
  std::string buffer(1 << 20, '\0');
  for (std::size_t received = 0; received < text.size();) {
    const ssize_t count = read(ends[0], buffer.data(), buffer.size());
    ASSERT_GT(count, 0);
    received += static_cast<std::size_t>(count);
  }
  EXPECT_TRUE(writer.wait_idle(kTimeout));
  for (const FileWriter::Done& one : writer.take_done()) EXPECT_EQ(one.errno_value, 0);
  ::close(ends[0]);
}

TEST_F(FileWriterTest, WritesNothingToAFailedFile) {
  FileWriter writer(1 << 20, nullptr);
  const FileWriter::File full = writer.open([] { return ::open("/dev/full", O_WRONLY); });
  const FileWriter::File missing = writer.open([] { return -ENOENT; });
  const FileWriter::File sound = writer.adopt(create("sound"));
  for (const FileWriter::File file : {full, missing, sound}) {
    writer.write(file, "a");
    writer.close(file);
  }
  ASSERT_TRUE(writer.wait_idle(kTimeout));
  for (const FileWriter::Done& one : writer.take_done()) {
    const bool was_open = one.file == full && one.step == FileWriter::Step::kOpen;
    const int expected = one.file == full && !was_open ? ENOSPC : one.file == missing ? ENOENT : 0;
    EXPECT_EQ(one.errno_value, expected) << one.file << " " << static_cast<int>(one.step);
  }
  EXPECT_EQ(writer.queued_bytes(), 0u);
  EXPECT_EQ(content("sound"), "a");
}

TEST_F(FileWriterTest, RenamesACompleteFileAndRemovesAFailedOne) {
  FileWriter writer(1 << 20, nullptr);
  const std::string target = root_ + "/target";
  const FileWriter::File whole = writer.open([this] { return create("whole"); });
  writer.write(whole, "a");
  writer.close_and_rename(whole, root_ + "/whole", target);
  // This descriptor is not writable.
  const FileWriter::File failed = writer.open([this] {
    ::close(create("failed"));
    return ::open((root_ + "/failed").c_str(), O_RDONLY | O_CLOEXEC);
  });
  writer.write(failed, "b");
  writer.close_and_rename(failed, root_ + "/failed", target);
  ::close(create("foreign"));
  const FileWriter::File unopened = writer.open([] { return -EACCES; });
  writer.close_and_rename(unopened, root_ + "/foreign", target);
  ASSERT_TRUE(writer.wait_idle(kTimeout));
  EXPECT_EQ(content("target"), "a");
  EXPECT_FALSE(std::filesystem::exists(root_ + "/whole"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/failed"));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/foreign")) << "the writer did not open it";
  for (const FileWriter::Done& one : writer.take_done()) {
    if (one.step != FileWriter::Step::kClose) continue;
    EXPECT_EQ(one.errno_value, one.file == whole ? 0 : one.file == failed ? EBADF : EACCES);
  }
}

TEST_F(FileWriterTest, DestructionDoesNotWaitForABlockingFile) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  {
    FileWriter writer(1, [this] { ++calls_; });
    const FileWriter::File file = writer.adopt(ends[1]);
    writer.write(file, std::string(1 << 20, 'x'));
  }
  const int calls = calls_;
  ::close(ends[0]);  // Unblocks the thread.
  EXPECT_EQ(calls, calls_);
}

}  // namespace
}  // namespace ivy
