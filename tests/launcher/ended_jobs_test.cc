// SPDX-License-Identifier: Apache-2.0
// Records of jobs that finished in the background.
#include "launcher/job/control/ended_jobs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <random>

namespace ivy {
namespace {

std::string random_id() {
  std::random_device random;
  std::string id;
  while (id.size() < 32) id += "0123456789abcdef"[random() % 16];
  return id;
}

class JobEndTest : public testing::Test {
 protected:
  JobEndTest() {
    Result<LockedLauncherDirectory> directory = make_launcher_directory(id_);
    EXPECT_TRUE(directory.ok());
    directory_ = std::move(*directory);
  }
  ~JobEndTest() override {
    remove_launcher_directory(directory_);
    unlink(file().c_str());
  }
  std::string file() const { return directory_.path + ".ended"; }

  const std::string id_ = random_id();
  LockedLauncherDirectory directory_;
};

TEST_F(JobEndTest, IsFoundByAPrefixForADay) {
  EXPECT_FALSE(find_ended_job(id_).has_value());
  record_end(directory_, {id_, 143, "rank 3 was killed\nand more", std::string("\0a\nb", 4)});
  const auto found = find_ended_job(id_.substr(0, 12));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->job_id, id_);
  EXPECT_EQ(found->exit_code, 143);
  EXPECT_EQ(how_it_ended(*found), "rank 3 was killed (exit code 143)");
  EXPECT_EQ(found->description, std::string("\0a\nb", 4));
  EXPECT_FALSE(find_ended_job("").has_value());
  const std::time_t old = std::time(nullptr) - 25 * 3600;
  const timespec times[2] = {{old, 0}, {old, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file().c_str(), times, 0), 0);
  EXPECT_FALSE(find_ended_job(id_).has_value());
  // The next record_end() removes it.
  Result<LockedLauncherDirectory> made = make_launcher_directory(random_id());
  LockedLauncherDirectory other = std::move(*made);
  record_end(other, {other.job_id, 0, "", ""});
  EXPECT_NE(access(file().c_str(), F_OK), 0);
  EXPECT_EQ(how_it_ended(*find_ended_job(other.job_id)), "succeeded (exit code 0)");
  unlink((other.path + ".ended").c_str());
  remove_launcher_directory(other);
}

TEST_F(JobEndTest, IgnoresADamagedFile) {
  for (const char* text : {"", "exit", "exit x\n", "exit 1x\n", "hello\n"}) {
    std::ofstream(file()) << text;
    EXPECT_FALSE(find_ended_job(id_).has_value()) << text;
  }
}

}  // namespace
}  // namespace ivy
