// SPDX-License-Identifier: Apache-2.0
#include "proto/os/user_directories.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

using Directories = std::vector<std::string>;

TEST(UserDirectories, ListsTheParentsOfJobDirectoriesInOrder) {
  EXPECT_EQ(job_parents(1000, 1000, nullptr),
            (Directories{"/tmp/ivyrun-1000", "/dev/shm/ivyrun-1000"}));
  EXPECT_EQ(job_parents(0, 0, "/run/user/0"),
            (Directories{"/tmp/ivyrun-0", "/dev/shm/ivyrun-0", "/run/user/0/ivyrun"}));
  EXPECT_EQ(job_parents(0, 1000, nullptr),
            (Directories{"/tmp/ivyrun-0", "/dev/shm/ivyrun-0", "/tmp/ivyrun-0-of-1000"}));
}

TEST(UserDirectories, FindsTheUidOutsideOfAUserNamespace) {
  EXPECT_EQ(uid_outside(1000, "         0          0 4294967295\n"), 1000u);
  EXPECT_EQ(uid_outside(0, "         0       1000          1\n"), 1000u);
  // Rootless podman.
  EXPECT_EQ(uid_outside(7, "         0       1000          1\n         1     100000      65536\n"),
            100006u);
  EXPECT_EQ(uid_outside(70000, "         0       1000          1\n"), 70000u);
  EXPECT_EQ(uid_outside(0, ""), 0u);
}

TEST(UserDirectories, IgnoresARuntimeDirectoryThatIsNotAbsolute) {
  for (const char* value : {static_cast<const char*>(nullptr), "", "run/user/0", "."}) {
    EXPECT_EQ(ivyrun_runtime_directory(value), "");
    EXPECT_EQ(job_parents(7, 7, value).size(), 2u);
  }
}

TEST(UserDirectories, AcceptsOnlyHexadecimalJobIds) {
  EXPECT_TRUE(is_job_id("0123456789abcdef0123456789abcdef"));
  EXPECT_FALSE(is_job_id("0123456789ABCDEF0123456789abcdef"));
  EXPECT_FALSE(is_job_id("0123456789abcdef0123456789abcde"));
  EXPECT_FALSE(is_job_id("../../../../../../../../../../.."));
  EXPECT_FALSE(is_job_id(""));
}

TEST(UserDirectories, ChangesOnlyAGracePeriodThatASupervisorWrote) {
  const std::string directory = testing::TempDir() + "grace." + std::to_string(getpid());
  std::filesystem::create_directory(directory);
  EXPECT_FALSE(change_stop_grace(directory, std::chrono::seconds(1)));
  EXPECT_FALSE(read_stop_grace(directory).has_value());
  ASSERT_TRUE(write_stop_grace(directory, std::chrono::seconds(30)));
  EXPECT_TRUE(change_stop_grace(directory, std::chrono::milliseconds(0)));
  EXPECT_EQ(read_stop_grace(directory), std::chrono::milliseconds(0));
  std::ofstream(directory + "/stop-grace-ms") << "soon";
  EXPECT_FALSE(read_stop_grace(directory).has_value());
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ivy
