// SPDX-License-Identifier: Apache-2.0
// The agent's own cgroups, and wardens that start in a cgroup next to it. Method: a cgroup made by
// the test stands for the unit; if none can be made, the tests are skipped.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>

#include "agent/daemon/jobs/unit_cgroup.h"
#include "proto/os/cgroup_files.h"
#include "tests/agent/agent_fixture.h"
#include "tests/agent/node_fixture.h"

namespace ivy::test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class AgentCgroupTest : public AgentFixture {
 protected:
  AgentCgroupTest() {
    put_bundle();
    const auto own =
        cgroup_v2_directory(content_of("/proc/self/mountinfo"), content_of("/proc/self/cgroup"));
    if (!own) return;
    unit_ = *own + "/ivy-unit-test-" + std::to_string(getpid());
    if (mkdir(unit_.c_str(), 0755) != 0) unit_.clear();
  }
  ~AgentCgroupTest() override {
    if (unit_.empty()) return;
    for (const char* leaf : {"/jobs", "/agent", ""}) {
      const std::string path = unit_ + leaf;
      EXPECT_TRUE(eventually([&] { return rmdir(path.c_str()) == 0 || errno == ENOENT; })) << path;
    }
  }
  // Returns what a process that starts in the unit prints, one fact a line.
  std::string as_started_in(const std::string& cgroup) {
    Pipe output;
    const pid_t child = fork();
    if (child == 0) {
      std::ofstream(cgroup + "/cgroup.procs") << "0" << std::flush;
      const UnitCgroup unit = enter_unit_cgroup();
      const std::string text =
          unit.jobs + "\n" + unit.description + "\n" + content_of("/proc/self/cgroup");
      [[maybe_unused]] const ssize_t n = write(output.writer(), text.data(), text.size());
      _exit(0);
    }
    output.close_end(1);
    const std::string text = read_text(output.reader(), ReadUntil::kEnd);
    waitpid(child, nullptr, 0);
    return text;
  }

  std::string unit_;  // Empty if no cgroup can be made here.
};

TEST_F(AgentCgroupTest, TheAgentMovesIntoALeafAndMakesRoomForJobs) {
  if (unit_.empty()) GTEST_SKIP() << "no cgroup v2 that can be written";
  const std::string expected = unit_ + "/jobs\ncgroup " + unit_ + "/jobs\n";
  const std::string leaf = unit_.substr(unit_.rfind('/')) + "/agent\n";
  // The first start, then a restart, then a start as with systemd's DelegateSubgroup.
  for (const std::string& started_in : {unit_, unit_, unit_ + "/agent"}) {
    const std::string printed = as_started_in(started_in);
    EXPECT_TRUE(printed.starts_with(expected)) << printed;
    EXPECT_NE(printed.find(leaf), std::string::npos) << printed;
  }
}

TEST_F(AgentCgroupTest, StartsJobsInSiblingCgroups) {
  if (unit_.empty()) GTEST_SKIP() << "no cgroup v2 that can be written";
  AgentServiceOptions with = options();
  with.jobs_cgroup = unit_ + "/jobs";  // Made if it is missing.
  ASSERT_TRUE(start_agent(with));
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  // Warden, supervisor, worker. A process in the middle of execve() has no arguments to read.
  std::vector<pid_t> processes;
  EXPECT_TRUE(eventually([&] {
    processes = launcher.processes();
    return processes.size() == 3;
  })) << processes.size();
  for (const pid_t pid : processes) {
    const std::string cgroup = content_of("/proc/" + std::to_string(pid) + "/cgroup");
    EXPECT_NE(cgroup.find(unit_.substr(unit_.rfind('/')) + "/jobs"), std::string::npos) << cgroup;
  }
  const std::string worker =
      content_of("/proc/" + std::to_string(launcher.started(0).value().pid()) + "/cgroup");
  EXPECT_NE(worker.find("/jobs/ivy-" + launcher.job_id().substr(0, 12) + "-0\n"), std::string::npos)
      << worker;
  launcher.finish();
  audit_of(launcher.job_id());
  EXPECT_TRUE(all_exited(launcher));
}

TEST_F(AgentCgroupTest, ReportsAWardenThatCannotEnterItsCgroup) {
  AgentServiceOptions with = options();
  with.jobs_cgroup = "/proc/none/jobs";
  ASSERT_TRUE(start_agent(with));
  StreamLauncher launcher(kBundle);
  AgentStream stream(channel(), launcher.job());
  ASSERT_TRUE(stream.opened());
  EXPECT_TRUE(stream.status().ok());
  EXPECT_EQ(stream.take(),
            "\x01ivy:fail enter /proc/none/jobs/cgroup.procs: No such file or directory\n");
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "the supervisor could not start"));
}

}  // namespace
}  // namespace ivy::test
