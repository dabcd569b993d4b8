// SPDX-License-Identifier: Apache-2.0
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "agent/node/hang/process_view.h"
#include "agent/node/spawn/cgroup.h"
#include "agent/node/spawn/choose_containment.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/os/cgroup_files.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"
#include "tests/support/resource_limit.h"

namespace ivy::test {
namespace {

constexpr uid_t kOrdinaryUser = 65534;
constexpr int kMany = 40;

// This process acts as the supervisor: orphans become its children.
class ContainmentTest : public testing::Test {
 protected:
  ContainmentTest() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~ContainmentTest() override {
    reap();
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  static void reap() {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  ContainmentRequest request() const {
    return {.job_id = job_id_, .host = 0, .supervisor = getpid(), .warden = 0};
  }

  LeakGuard guard_;
  const std::string job_id_ = random_job_id();
};

// Starts processes that are hard to kill and returns their pids.
std::vector<pid_t> start_a_stubborn_job(const std::string& job_id, int cgroup_fd) {
  std::vector<pid_t> pids;
  const auto add = [&](const std::string& child, const std::string& argument) {
    SpawnRequest request = request_for(child, {argument});
    request.environment = job_environment(job_id, 0);
    request.cgroup_fd = cgroup_fd;
    const Running running = start(request);
    pids.push_back(running.process.pid);
    close(running.process.pidfd);
    std::istringstream words(running.line);
    pid_t pid = 0;
    while (words >> pid) pids.push_back(pid);
  };
  add("fork_grandchild", "stay");
  add("fork_grandchild", "leave");
  add("ignore_term", "");
  add("fork_many", std::to_string(kMany));
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

// Returns true if all processes of the job were found, those that ignore TERM survived it, and none
// is left at the end.
bool kills_a_stubborn_job(Containment& job, const std::string& job_id) {
  const std::vector<pid_t> pids = start_a_stubborn_job(job_id, job.cgroup_fd());
  // Two pairs of grandchild and parent (one parent exits), one process that ignores TERM, and
  // kMany.
  const std::size_t expected = 3 + 1 + kMany;
  if (!eventually([&] { return job.members().size() == expected; })) return false;
  job.signal_all(SIGTERM);
  // Only the parent that stays exits on TERM.
  if (!eventually([&] { return job.members().size() == expected - 1; })) return false;
  const bool ended = eventually([&] {
    job.kill_all();
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return job.empty();
  });
  return ended && std::ranges::all_of(pids, [](pid_t pid) { return has_exited(pid); });
}

TEST_F(ContainmentTest, CgroupKillsAJobThatIgnoresSignals) {
  Result<std::unique_ptr<Containment>> job = make_cgroup(request());
  if (!job.ok()) GTEST_SKIP() << job.error().message;
  EXPECT_TRUE((*job)->describe().starts_with("cgroup /"));
  const std::string directory = (*job)->describe().substr(std::string("cgroup ").size());
  EXPECT_TRUE(kills_a_stubborn_job(**job, job_id_));
  struct stat status {};
  EXPECT_EQ(stat(directory.c_str(), &status), 0);
  (*job)->remove();
  EXPECT_NE(stat(directory.c_str(), &status), 0);
  EXPECT_TRUE((*job)->empty());
  EXPECT_TRUE((*job)->members().empty());
}

TEST_F(ContainmentTest, RemovesTheCgroupAndThoseThatWorkersMadeInIt) {
  Result<std::unique_ptr<Containment>> job = make_cgroup(request());
  if (!job.ok()) GTEST_SKIP() << job.error().message;
  const std::string directory = (*job)->describe().substr(std::string("cgroup ").size());
  ASSERT_EQ(mkdir((directory + "/inner").c_str(), 0755), 0);
  const int inner = open((directory + "/inner").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  SpawnRequest worker = request_for("ignore_term");
  worker.cgroup_fd = inner;
  const Running running = start(worker);
  close(inner);
  ASSERT_EQ((*job)->members().size(), 1u);
  EXPECT_EQ((*job)->members()[0].name, "ignore_term");
  EXPECT_FALSE((*job)->empty());
  (*job)->kill_all();
  EXPECT_EQ(wait_exit(running.process).signal, SIGKILL);
  EXPECT_TRUE(eventually([&] { return (*job)->empty(); }));
  (*job)->remove();
  struct stat status {};
  EXPECT_NE(stat(directory.c_str(), &status), 0);
}

TEST_F(ContainmentTest, ProcessTreeKillsAJobThatIgnoresSignals) {
  ProcessTree job(request());
  EXPECT_TRUE(job.empty());
  EXPECT_TRUE(kills_a_stubborn_job(job, job_id_));
}

TEST_F(ContainmentTest, ProcessTreeKillsAThousandProcesses) {
  constexpr std::size_t kThousand = 1000;
  const Running running = start(request_for("fork_many", {std::to_string(kThousand)}));
  ProcessTree job(request());
  EXPECT_EQ(job.members().size(), kThousand);
  close(running.process.pidfd);
  EXPECT_TRUE(eventually([&] {
    job.kill_all();
    reap();
    return job.empty();
  }));
}

TEST_F(ContainmentTest, KillsAJobThatIgnoresSignalsAsAnUnprivilegedUserWithoutACgroup) {
  const pid_t ordinary = fork();
  if (ordinary == 0) {
    if (geteuid() == 0 &&
        (setgroups(0, nullptr) != 0 || setgid(kOrdinaryUser) != 0 || setuid(kOrdinaryUser) != 0)) {
      _exit(2);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ContainmentRequest own = request();
    const std::unique_ptr<Containment> job = make_containment(own);
    _exit(kills_a_stubborn_job(*job, job_id_) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(ordinary, &status, 0), ordinary);
  EXPECT_EQ(status, 0);
}

TEST_F(ContainmentTest, ProcessTreeReportsWhyThereIsNoCgroup) {
  EXPECT_EQ(ProcessTree(request()).describe(), "process tree");
  EXPECT_EQ(ProcessTree(request(), "mkdir /x: no").describe(), "process tree (mkdir /x: no)");
}

// A process outside the tree belongs to the job if both variables match.
TEST_F(ContainmentTest, ProcessTreeFindsByJobAndHostInTheEnvironment) {
  const auto start_with = [](const Environment& environment) {
    SpawnRequest worker = request_for("ignore_term");
    worker.environment = environment;
    return start(worker).process;
  };
  const SpawnedProcess keeper = start_with({});
  const SpawnedProcess ours = start_with(job_environment(job_id_, 0));
  const SpawnedProcess other_host = start_with(job_environment(job_id_, 10));
  const SpawnedProcess other_job = start_with(job_environment(random_job_id(), 0));
  ProcessTree job({.job_id = job_id_, .host = 0, .supervisor = keeper.pid, .warden = 0});

  const std::vector<JobProcess> members = job.members();
  ASSERT_EQ(members.size(), 1u);
  EXPECT_EQ(members[0].pid, ours.pid);
  job.kill_all();
  EXPECT_EQ(wait_exit(ours).signal, SIGKILL);
  EXPECT_TRUE(job.empty());
  for (const SpawnedProcess& process : {keeper, other_host, other_job}) {
    EXPECT_FALSE(has_exited(process.pid));
    kill(process.pid, SIGKILL);
    wait_exit(process);
  }
}

TEST_F(ContainmentTest, ProcessTreeContinuesStoppedProcessesBeforeTerm) {
  const Running sleeper = start([] {
    SpawnRequest request = request_for("fork_grandchild", {"stay"});
    return request;
  }());
  kill(sleeper.process.pid, SIGSTOP);
  ProcessTree job(request());
  job.signal_all(SIGTERM);
  EXPECT_EQ(wait_exit(sleeper.process).signal, SIGTERM);
  EXPECT_TRUE(eventually([&] {
    job.kill_all();
    reap();
    return job.empty();
  }));
}

// If the main thread has exited, /proc shows the process as a zombie although other threads run.
struct WithoutMainThread {
  SpawnedProcess process;
  pid_t pid = 0;  // Of the process that keeps running.
};

char main_thread_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  ProcessStat process;
  return parse_process_stat(text, process) ? process.state : '?';
}

WithoutMainThread start_without_main_thread(std::vector<std::string> arguments,
                                            const Environment& environment, int cgroup_fd) {
  SpawnRequest request = request_for("leave_main_thread", std::move(arguments));
  request.environment = environment;
  request.cgroup_fd = cgroup_fd;
  const Running running = start(request);
  const pid_t pid = static_cast<pid_t>(std::atoi(running.line.c_str()));
  EXPECT_TRUE(eventually([&] { return main_thread_state(pid) == 'Z'; }));
  return {running.process, pid};
}

void end_one_without_main_thread(Containment& job, const Environment& environment) {
  const WithoutMainThread polite = start_without_main_thread({}, environment, job.cgroup_fd());
  ASSERT_EQ(job.members().size(), 1u);
  EXPECT_EQ(job.members()[0].pid, polite.pid);
  EXPECT_NE(job.members()[0].state, 'Z');
  EXPECT_FALSE(job.empty());
  job.signal_all(SIGTERM);
  EXPECT_TRUE(eventually([&] { return job.empty(); }));
  EXPECT_EQ(wait_exit(polite.process).signal, SIGTERM);

  const WithoutMainThread immune =
      start_without_main_thread({"ignore"}, environment, job.cgroup_fd());
  job.signal_all(SIGTERM);
  EXPECT_EQ(job.members().size(), 1u);
  job.kill_all();
  EXPECT_TRUE(eventually([&] { return job.empty(); }));
  EXPECT_EQ(wait_exit(immune.process).signal, SIGKILL);
}

TEST_F(ContainmentTest, ProcessTreeKillsAProcessWhoseMainThreadHasExited) {
  ProcessTree job(request());
  end_one_without_main_thread(job, {});
}

TEST_F(ContainmentTest, CgroupKillsAProcessWhoseMainThreadHasExited) {
  Result<std::unique_ptr<Containment>> job = make_cgroup(request());
  if (!job.ok()) GTEST_SKIP() << job.error().message;
  end_one_without_main_thread(**job, {});
  (*job)->remove();
}

TEST_F(ContainmentTest, ProcessTreeKillsAnOrphanWhoseMainThreadHasExited) {
  const WithoutMainThread worker = start_without_main_thread({"ignore", "grandchild"}, {}, -1);
  EXPECT_EQ(wait_exit(worker.process).code, 0);
  ProcessTree job(request());
  EXPECT_FALSE(job.empty());
  ASSERT_EQ(job.members().size(), 1u);
  EXPECT_EQ(job.members()[0].pid, worker.pid);
  job.kill_all();
  EXPECT_TRUE(eventually([&] {
    reap();
    return job.empty() && ::kill(worker.pid, 0) != 0;
  }));
}

// Only the other threads of such a process still show its environment.
TEST_F(ContainmentTest, ProcessTreeFindsByTheEnvironmentOfAnotherThread) {
  const Running keeper = start(request_for("ignore_term"));
  const WithoutMainThread ours = start_without_main_thread({}, job_environment(job_id_, 0), -1);
  ProcessTree job({.job_id = job_id_, .host = 0, .supervisor = keeper.process.pid, .warden = 0});
  EXPECT_FALSE(job.empty());
  job.signal_all(SIGTERM);
  EXPECT_EQ(wait_exit(ours.process).signal, SIGTERM);
  kill(keeper.process.pid, SIGKILL);
  wait_exit(keeper.process);
}

TEST_F(ContainmentTest, InspectsAProcessWhoseMainThreadHasExited) {
  const WithoutMainThread worker = start_without_main_thread({}, {}, -1);
  ProcessView view;
  EXPECT_TRUE(eventually([&] {  // It may print its line before it sleeps.
    return read_process_view(worker.pid, view) && view.stat.state == 'S';
  }));
  EXPECT_FALSE(view.system_call.empty());
  EXPECT_EQ(view.threads, 2u);
  EXPECT_TRUE(holds_open(worker.pid, "/dev/null"));
  kill(worker.pid, SIGKILL);
  wait_exit(worker.process);
  EXPECT_FALSE(read_process_view(worker.pid, view));
}

TEST_F(ContainmentTest, DoesNotSignalAProcessThatReusesThePid) {
  const Running running = start(request_for("ignore_term"));
  ProcessStat stat_now;
  ASSERT_TRUE(read_process_stat(running.process.pid, stat_now));
  EXPECT_FALSE(signal_process(running.process.pid, stat_now.start_time + 1, SIGKILL));
  EXPECT_FALSE(has_exited(running.process.pid));
  EXPECT_FALSE(signal_process(1, 0, 0));
  EXPECT_FALSE(signal_process(0, 0, 0));
  EXPECT_FALSE(signal_process(-1, 0, 0));
  EXPECT_TRUE(signal_process(running.process.pid, stat_now.start_time, SIGKILL));
  EXPECT_EQ(wait_exit(running.process).signal, SIGKILL);
}

TEST_F(ContainmentTest, TreatsAnUnreadableTreeAsNotEmpty) {
  ProcessTree tree(request());
  EXPECT_TRUE(tree.empty());
  {
    const test::ResourceLimit no_descriptors(RLIMIT_NOFILE, 0);
    EXPECT_FALSE(tree.empty());
  }
  EXPECT_TRUE(tree.empty());
}

TEST_F(ContainmentTest, TreatsAnUnreadableCgroupAsNotEmpty) {
  const auto cgroup = make_containment(request());
  if (cgroup->cgroup_fd() < 0) GTEST_SKIP() << "no cgroup: " << cgroup->describe();
  EXPECT_TRUE(cgroup->empty());
  {
    const test::ResourceLimit no_descriptors(RLIMIT_NOFILE, 0);
    EXPECT_FALSE(cgroup->empty());
  }
  cgroup->remove();
  EXPECT_TRUE(cgroup->empty());
}

TEST_F(ContainmentTest, ReadsTheCounterOfOutOfMemoryKills) {
  EXPECT_GE(ProcessTree(request()).out_of_memory_kills(), 0);
}

TEST(ProcessStatTest, ReadsANameWithBlanksAndParentheses) {
  ProcessStat out;
  ASSERT_TRUE(parse_process_stat(
      "77 (a) (b c)) S 5 77 77 0 -1 1 2 3 4 5 6 7 8 9 20 0 3 0 123456 99 1\n", out));
  EXPECT_EQ(out.pid, 77);
  EXPECT_EQ(out.name, "a) (b c)");
  EXPECT_EQ(out.state, 'S');
  EXPECT_EQ(out.parent, 5);
  EXPECT_EQ(out.threads, 3);
  EXPECT_EQ(out.start_time, 123456u);
}

TEST(ProcessStatTest, RejectsJunk) {
  ProcessStat out;
  for (const char* junk : {"", "77", "77 (x", "77 )x(", "77 (x) S", "x (x) S 1 2"}) {
    EXPECT_FALSE(parse_process_stat(junk, out)) << junk;
  }
}

}  // namespace
}  // namespace ivy::test
