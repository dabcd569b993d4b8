// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/job_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "proto/os/own_directory.h"
#include "proto/wire/mpi_names.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

class JobDirectoryTest : public testing::Test {
 protected:
  JobDirectory make(std::uint32_t host = 0) {
    Result<JobDirectory> made = make_job_directory(job_id_, host);
    EXPECT_TRUE(made.ok());
    return made.value();
  }
  // Leaves the state of a killed warden: the directory without its lock.
  void die(const JobDirectory& directory) { close(directory.lock_fd); }
  void remove(const JobDirectory& directory) {
    remove_job_directory(directory);
    die(directory);
  }
  void remove_dead(const JobDirectory& directory) {
    remove_job_directory({.path = directory.path, .lock_fd = -1});
  }

  LeakGuard guard_;
  const std::string job_id_ = random_job_id();
};

TEST_F(JobDirectoryTest, IsPrivateAndFoundAgain) {
  const JobDirectory made = make(7);
  struct stat status {};
  ASSERT_EQ(stat(made.path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(find_job_directory(job_id_, 7)->path, made.path);
  EXPECT_EQ(find_job_directory(job_id_, 8).error().code, Code::kNotFound);
  remove(made);
  EXPECT_EQ(find_job_directory(job_id_, 7).error().code, Code::kNotFound);
}

TEST_F(JobDirectoryTest, RejectsTheDirectoryOfARunningJob) {
  const JobDirectory made = make();
  EXPECT_EQ(make_job_directory(job_id_, 0).error().code, Code::kAlreadyExists);
  const JobDirectory other_host = make(1);
  remove(other_host);
  remove(made);
}

// An agent or another warden that checks whether a job runs holds its lock for a moment.
TEST_F(JobDirectoryTest, IsNotMistakenForARunningJobDuringACheck) {
  const JobDirectory first = make();
  die(first);
  const int looking = open(first.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(looking, LOCK_SH | LOCK_NB), 0);
  std::thread ends([looking] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    close(looking);
  });
  const Result<JobDirectory> made = make_job_directory(job_id_, 0);
  ends.join();
  ASSERT_TRUE(made.ok()) << made.error().message;
  remove(*made);
}

TEST_F(JobDirectoryTest, ReusesTheDirectoryOfADeadJob) {
  const JobDirectory first = make();
  const int listening = *listen_on_command_socket(first);
  close(listening);
  die(first);
  const JobDirectory second = make();
  EXPECT_EQ(second.path, first.path);
  const Result<int> again = listen_on_command_socket(second);
  ASSERT_TRUE(again.ok());
  close(*again);
  remove(second);
}

TEST_F(JobDirectoryTest, RemovesDirectoriesOfDeadJobsOnly) {
  const JobDirectory dead = make(1);
  die(dead);
  const JobDirectory live = make(2);
  const JobDirectory fresh = make(3);
  die(fresh);
  const std::filesystem::file_time_type long_ago =
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(dead.path, long_ago);
  std::filesystem::last_write_time(live.path, long_ago);
  const JobDirectory made = make(4);
  EXPECT_TRUE(std::filesystem::exists(dead.path)) << "a start does not wait for this";
  remove_dead_jobs(made);
  EXPECT_FALSE(std::filesystem::exists(dead.path));
  EXPECT_TRUE(std::filesystem::exists(live.path));
  EXPECT_TRUE(std::filesystem::exists(fresh.path)) << "its maker may not have locked it yet";
  remove_dead(fresh);
  remove(live);
  remove(made);
}

TEST_F(JobDirectoryTest, RejectsALinkInPlaceOfTheDirectory) {
  const JobDirectory made = make();
  const std::string parent = made.path.substr(0, made.path.rfind('/'));
  remove(made);
  const std::string target = parent + "/target-" + job_id_;
  std::filesystem::create_directory(target);
  std::filesystem::create_directory_symlink(target, made.path);
  EXPECT_EQ(find_job_directory(job_id_, 0).error().code, Code::kNotFound);
  const Result<JobDirectory> elsewhere = make_job_directory(job_id_, 0);
  if (elsewhere.ok()) {
    EXPECT_NE(elsewhere->path, made.path);
    remove(*elsewhere);
  }
  EXPECT_TRUE(std::filesystem::is_empty(target));
  std::filesystem::remove(made.path);
  std::filesystem::remove(target);
}

TEST_F(JobDirectoryTest, RejectsADirectoryThatOthersCanRead) {
  const JobDirectory made = make();
  die(made);
  chmod(made.path.c_str(), 0755);
  EXPECT_FALSE(find_job_directory(job_id_, 0).ok());
  remove_dead(made);
}

TEST_F(JobDirectoryTest, RemovesFilesOfAKilledPmixServer) {
  const std::string parent = pmix_segments_parent("/dev/shm", geteuid());
  ASSERT_TRUE(make_own_directory(parent));
  const std::string dead = parent + "/pmix-" + job_id_ + "-1-0";
  const std::string live = parent + "/pmix-" + job_id_ + "-2-0";
  const JobDirectory made = make(1);
  std::filesystem::create_directories(dead + "/gds");
  ASSERT_TRUE(make_own_directory(live));
  Descriptor lock = lock_directory(live);
  remove(made);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(live));
  lock.reset();
  // They are removed even if the supervisor has already removed the job directory.
  remove_job_directory(made);
  EXPECT_FALSE(std::filesystem::exists(live));
}

TEST_F(JobDirectoryTest, RemovesTheJobsScratch) {
  const JobDirectory made = make();
  const std::string scratch = "/tmp/test-" + job_id_.substr(0, kScratchDigits);
  for (int attempt = 0; attempt < 2; ++attempt) ASSERT_TRUE(make_scratch(made.path, scratch).ok());
  std::filesystem::create_directories(scratch + "/a/b/c/d/e/f/g/h/i/j");
  remove(made);
  EXPECT_FALSE(std::filesystem::exists(scratch));
}

TEST_F(JobDirectoryTest, RemovesTheJobsSemaphoresAndNoOthers) {
  const JobDirectory made = make(1);
  const std::string stem = "/dev/shm/sem.mp-" + job_id_;
  const std::string of_another_host = stem + "-11-abcdefgh";
  for (const std::string& path : {stem + "-1-abcdefgh", stem + "-1-zyxwvuts", of_another_host})
    std::ofstream(path) << "x";
  remove(made);
  EXPECT_FALSE(std::filesystem::exists(stem + "-1-abcdefgh"));
  EXPECT_FALSE(std::filesystem::exists(stem + "-1-zyxwvuts"));
  EXPECT_TRUE(std::filesystem::remove(of_another_host));
}

TEST_F(JobDirectoryTest, RemovesNoOtherScratch) {
  const std::string other = "/tmp/test-other-" + job_id_.substr(kScratchDigits);
  std::filesystem::create_directory(other);
  for (const std::string& target : {other, "/tmp/../tmp/x-" + job_id_.substr(0, kScratchDigits)}) {
    const JobDirectory made = make();
    std::filesystem::create_directory_symlink(target, made.path + "/scratch");
    EXPECT_FALSE(make_scratch(made.path, other).ok());
    remove(made);
  }
  EXPECT_TRUE(std::filesystem::remove(other));
}

TEST_F(JobDirectoryTest, RemovesEverythingInItButFollowsNoLink) {
  const JobDirectory made = make();
  const std::string outside = made.path.substr(0, made.path.rfind('/')) + "/outside-" + job_id_;
  std::ofstream(outside) << "keep";
  std::filesystem::create_symlink(outside, made.path + "/link");
  std::filesystem::create_directories(made.path + "/a/b");
  std::ofstream(made.path + "/a/b/file") << "x";
  std::ofstream(made.error_file(0, 3)) << "{}";
  remove(made);
  EXPECT_FALSE(std::filesystem::exists(made.path));
  EXPECT_TRUE(std::filesystem::exists(outside));
  std::filesystem::remove(outside);
}

TEST_F(JobDirectoryTest, RemovesNoDirectoryThatWasMadeAgain) {
  const JobDirectory first = make();
  remove_job_directory(first);
  const JobDirectory second = make();
  remove_job_directory(first);
  EXPECT_TRUE(std::filesystem::exists(second.path));
  die(first);
  remove(second);
}

TEST_F(JobDirectoryTest, CarriesBytesOverTheCommandSocket) {
  const JobDirectory made = make();
  EXPECT_EQ(connect_to_command_socket(made).error().code, Code::kNotFound);
  const int listening = *listen_on_command_socket(made);
  const int client = *connect_to_command_socket(made);
  const int server = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(server, 0);
  EXPECT_EQ(write(client, "hello\n", 6), 6);
  EXPECT_EQ(read_text(server, ReadUntil::kLine), "hello\n");
  for (const int fd : {listening, client, server}) close(fd);
  EXPECT_EQ(connect_to_command_socket(made).error().code, Code::kNotFound);
  remove(made);
}

}  // namespace
}  // namespace ivy::test
