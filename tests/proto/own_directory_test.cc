// SPDX-License-Identifier: Apache-2.0
#include "proto/os/own_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

namespace fs = std::filesystem;

class OwnDirectoryTest : public testing::Test {
 protected:
  OwnDirectoryTest() { fs::create_directory(root_); }
  ~OwnDirectoryTest() override { fs::remove_all(root_); }

  const std::string root_ = testing::TempDir() + "own." + std::to_string(getpid());
  const std::string path_ = root_ + "/job";
};

TEST_F(OwnDirectoryTest, AcceptsADirectoryOfThisUser) {
  EXPECT_EQ(check_own_directory(path_).error().code, Code::kNotFound);
  ASSERT_TRUE(make_own_directory(path_).ok());
  ASSERT_TRUE(make_own_directory(path_).ok());
  EXPECT_TRUE(is_own_directory(path_));
}

TEST_F(OwnDirectoryTest, RejectsDirectoriesThatOthersCouldHaveCreated) {
  std::ofstream(path_) << "file";
  EXPECT_EQ(make_own_directory(path_).error().message, path_ + " is not a directory");
  fs::remove(path_);
  ASSERT_TRUE(make_own_directory(root_ + "/elsewhere").ok());
  fs::create_directory_symlink(root_ + "/elsewhere", path_);
  EXPECT_FALSE(make_own_directory(path_).ok());
  fs::remove(path_);
  ASSERT_TRUE(make_own_directory(path_).ok());
  chmod(path_.c_str(), 0750);
  EXPECT_EQ(check_own_directory(path_).error().fix, "chmod 700 " + path_);
  if (geteuid() != 0) return;
  chmod(path_.c_str(), 0700);
  ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_NE(check_own_directory(path_).error().message.find("belongs to uid 65534"),
            std::string::npos);
}

TEST_F(OwnDirectoryTest, LocksAnExistingDirectoryOnce) {
  EXPECT_FALSE(lock_directory(path_));
  ASSERT_TRUE(make_own_directory(path_).ok());
  const Descriptor first = lock_directory(path_);
  EXPECT_TRUE(first);
  EXPECT_FALSE(lock_directory(path_));
  EXPECT_TRUE(still_exists(first.get(), path_));
  // Another process removed the directory and created it again.
  fs::rename(path_, root_ + "/removed");
  ASSERT_TRUE(make_own_directory(path_).ok());
  EXPECT_FALSE(still_exists(first.get(), path_));
  EXPECT_TRUE(lock_directory(path_));
}

}  // namespace
}  // namespace ivy
