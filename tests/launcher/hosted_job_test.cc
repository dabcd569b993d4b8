// SPDX-License-Identifier: Apache-2.0
// ivyctl's view of jobs on this host: directories of running supervisors, and processes.
#include "launcher/ctl/hosted_job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// Unique for each process of this test.
std::string some_job() {
  std::array<char, kJobIdDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%032x", static_cast<unsigned>(getpid()));
  return text.data();
}

bool is_found(const std::string& job_id) {
  const std::vector<HostedJob> found = find_hosted_jobs();
  return std::any_of(found.begin(), found.end(),
                     [&](const HostedJob& job) { return job.job_id == job_id; });
}

TEST(HostedJobs, ListsJobsWhoseSupervisorRejectsConnections) {
  const std::string parent = ivyrun_tmp_directory(geteuid());
  mkdir(parent.c_str(), 0700);
  const std::string path = parent + "/" + some_job() + "-0";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  const int lock = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = path + "/command.sock";
  ASSERT_LT(name.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listening, generic, sizeof address), 0);
  ASSERT_EQ(listen(listening, 4), 0);

  // More queries than the backlog has slots.
  for (int look = 0; look < 10; ++look) EXPECT_TRUE(is_found(some_job())) << look;
  // The queries have taken no slot of the backlog.
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  EXPECT_EQ(connect(client, generic, sizeof address), 0) << std::strerror(errno);

  close(client);
  close(lock);
  EXPECT_FALSE(is_found(some_job())) << "its supervisor no longer runs";
  close(listening);
  unlink(name.c_str());
  rmdir(path.c_str());
}

TEST(HostedProcesses, AreFoundByTheJobIdUntilTheyExit) {
  std::string variable = "IVY_JOB_ID=" + some_job();
  std::string longer = variable + "0";
  std::string program = "sleep";
  std::string time = "60";
  const std::array<char*, 3> arguments{program.data(), time.data(), nullptr};
  const std::array<char*, 2> ours{variable.data(), nullptr};
  const std::array<char*, 2> others{longer.data(), nullptr};
  HostedProcesses processes(some_job());
  EXPECT_TRUE(processes.refresh().empty());
  pid_t pid = -1;
  pid_t other = -1;
  ASSERT_EQ(posix_spawn(&pid, "/bin/sleep", nullptr, nullptr, arguments.data(), ours.data()), 0);
  ASSERT_EQ(posix_spawn(&other, "/bin/sleep", nullptr, nullptr, arguments.data(), others.data()),
            0);
  const std::vector<HostedProcess> found = processes.refresh();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().pid, pid);
  EXPECT_EQ(found.front().name, "sleep");
  EXPECT_EQ(processes.refresh().size(), 1u) << "each once";
  kill(pid, SIGKILL);
  kill(other, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(processes.refresh().empty()) << "it has exited, although it was not reaped";
  waitpid(pid, nullptr, 0);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace ivy
