// SPDX-License-Identifier: Apache-2.0
// The newest file of --progress-file, in a directory of the test.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "agent/node/roles/progress.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

class NewestFileTest : public testing::Test {
 protected:
  NewestFileTest() {
    std::string name = (fs::temp_directory_path() / "ivynewestXXXXXX").string();
    root_ = fs::canonical(mkdtemp(name.data()));
  }
  ~NewestFileTest() override { fs::remove_all(root_); }

  void file(const std::string& name, const std::string& text, int second) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    const timespec times[2] = {{second, 5}, {second, 5}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  ProgressAnswer ask(const std::string& pattern) {
    ProgressQuestion question;
    question.set_number(7);
    question.set_directory(root_.string());
    question.set_pattern(pattern);
    return newest_file(question);
  }

  fs::path root_;
};

TEST_F(NewestFileTest, ReturnsTheNewestOfSeveralFiles) {
  file("ckpt/step9.pt", "x", 100);
  file("ckpt/step10.pt", "y", 200);
  file("ckpt/other.txt", "z", 300);
  const ProgressAnswer answer = ask("ckpt/*.pt");
  EXPECT_EQ(answer.number(), 7u);
  EXPECT_EQ(answer.path(), "ckpt/step10.pt");
  EXPECT_EQ(answer.mtime_ns(), 200'000'000'005);
  EXPECT_EQ(answer.text(), "y");
  EXPECT_EQ(answer.error(), "");
}

TEST_F(NewestFileTest, LooksBelowADirectoryThatMatches) {
  file("global_step10/rank0.pt", "x", 100);
  file("global_step20/rank0.pt", "x", 200);
  EXPECT_EQ(ask("global_step*").path(), "global_step20/rank0.pt");
}

TEST_F(NewestFileTest, LeavesOutTheTextOfALongFile) {
  file("a", std::string(65, '1'), 100);
  EXPECT_EQ(ask("a").path(), "a");
  EXPECT_EQ(ask("a").text(), "");
}

TEST_F(NewestFileTest, ReturnsNoPathIfNoFileMatches) {
  const ProgressAnswer answer = ask("missing/*.pt");
  EXPECT_EQ(answer.path(), "");
  EXPECT_EQ(answer.error(), "");
}

}  // namespace
}  // namespace ivy
