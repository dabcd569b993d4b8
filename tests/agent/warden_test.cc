// SPDX-License-Identifier: Apache-2.0
// The warden around small supervisors made by the test, each in a separate process like the real
// one.
#include "agent/node/roles/warden.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "agent/node/spawn/cgroup.h"
#include "agent/node/spawn/choose_containment.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

constexpr uid_t kOrdinaryUser = 65534;

void say(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t n = write(fd, text.data(), text.size());
}

// ---- Supervisors
// ----------------------------------------------------------------------------------

int leaves_with_seven(const SupervisorStart&) { return 7; }

int describes_itself(const SupervisorStart& start) {
  std::ostringstream text;
  int subreaper = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  text << "parent " << (getppid() == start.warden_pid) << " subreaper " << subreaper << " session "
       << (getsid(0) == start.warden_pid);
  // Standard descriptors, transport, lock, listening socket, the warden's pidfd and its pipe.
  text << " descriptors " << LeakGuard::count_descriptors() - 3;
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  struct sigaction term {};
  struct sigaction broken_pipe {};
  sigaction(SIGTERM, nullptr, &term);
  sigaction(SIGPIPE, nullptr, &broken_pipe);
  text << " signals " << (term.sa_handler == SIG_DFL) << (broken_pipe.sa_handler == SIG_IGN)
       << sigismember(&mask, SIGTERM) << "\n";
  say(start.link_fd, text.str());
  return 0;
}

// Exits slowly, like a process that the kernel is still dismantling: it waits until the test hangs
// up.
int stays_after_exit_notice(const SupervisorStart& start) {
  const std::string cgroup = described_cgroup(read_text(start.containment_fd, ReadUntil::kEnd));
  say(start.link_fd, std::to_string(getpid()) + " " + cgroup + "\n");
  if (start.exit_notice_fd >= 0) say(start.exit_notice_fd, "f");
  [[maybe_unused]] const std::string nothing = read_text(start.link_fd, ReadUntil::kEnd);
  return 6;
}

int reports_output_of_warden(const SupervisorStart& start) {
  const std::string printed = read_text(start.containment_fd, ReadUntil::kEnd);
  const std::string cgroup = described_cgroup(printed);
  struct stat status {};
  say(start.link_fd,
      printed + (cgroup.empty() || stat(cgroup.c_str(), &status) == 0 ? "|there\n" : "|gone\n"));
  return 0;
}

std::unique_ptr<Containment> containment_of(const SupervisorStart& start) {
  return make_containment({.job_id = start.job_id,
                           .host = start.host,
                           .supervisor = getpid(),
                           .warden = start.warden_pid});
}

// Starts two workers in the job's cgroup, each with a grandchild; returns this pid and theirs.
std::string run_families(const Containment& job, const Environment& environment) {
  std::string line = std::to_string(getpid());
  for (const char* const kind : {"stay", "leave"}) {
    SpawnRequest request = request_for("fork_grandchild", {kind});
    if (!environment.empty()) request.environment = environment;
    request.cgroup_fd = job.cgroup_fd();
    const Running running = ivy::test::start(request);
    line += " " + running.line.substr(0, running.line.size() - 1);
  }
  return line;
}

// Runs workers as the real supervisor does, reports every pid (its own first), and stays.
int keeps_stubborn_workers(const SupervisorStart& start) {
  const std::unique_ptr<Containment> job = containment_of(start);
  std::string line = run_families(*job, job_environment(start.job_id, start.host));
  // A process that is in no cgroup and does not have the job's variables.
  line += " " + std::to_string(ivy::test::start(request_for("ignore_term")).process.pid);
  say(start.link_fd, line + " " + job->describe() + "\n");
  for (;;) pause();
}

// Moves its workers to the cgroup above the job's, as root and the owner of a delegated tree may.
// Their environment has nothing of the job.
int keeps_workers_that_left_their_cgroup(const SupervisorStart& start) {
  const std::unique_ptr<Containment> job = containment_of(start);
  const std::string line = run_families(*job, {});
  for (const JobProcess& member : job->members())
    std::ofstream(described_cgroup(job->describe()) + "/../cgroup.procs") << member.pid;
  const std::size_t held = job->members().size();
  say(start.link_fd, line + " " + job->describe() + " holds " + std::to_string(held) + "\n");
  for (;;) pause();
}

// ---- Fixture
// ----------------------------------------------------------------------------------------

class WardenTest : public testing::Test {
 protected:
  ~WardenTest() override {
    if (transport_ >= 0) close(transport_);
  }

  // Starts a warden as a child of the test; the test holds the launcher's end of its transport.
  void start_warden(SupervisorMain supervisor, uid_t uid = geteuid()) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    warden_ = fork();
    if (warden_ == 0) {
      if (uid != geteuid() &&
          (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0)) {
        _exit(99);
      }
      WardenStart start;
      start.job_id = job_id_;
      start.host = 3;
      start.link_fd = ends[1];
      start.parent_reaps = parent_reaps_;
      _exit(run_warden(start, supervisor));
    }
    close(ends[1]);
    transport_ = ends[0];
  }
  std::string line() { return read_text(transport_, ReadUntil::kLine); }
  int wait_code() {
    int status = 0;
    waitpid(warden_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::vector<pid_t> read_pids() {
    const std::string printed = line();
    description_ = printed.substr(std::min(printed.find("cgroup "), printed.find("process tree")));
    std::istringstream words(printed);
    std::vector<pid_t> pids;
    for (pid_t pid = 0; words >> pid;) pids.push_back(pid);
    return pids;
  }
  void kill_the_supervisor_and_expect_nothing(uid_t uid) {
    start_warden(keeps_stubborn_workers, uid);
    const std::vector<pid_t> pids = read_pids();
    ASSERT_EQ(pids.size(), 6u);
    kill(pids[0], SIGKILL);
    EXPECT_EQ(wait_code(), 128 + SIGKILL);
    for (const pid_t pid : pids) EXPECT_TRUE(has_exited(pid)) << pid;
    EXPECT_EQ(line(), "");  // No process holds the transport any longer.
    const std::string directory = "/tmp/ivyrun-" + std::to_string(uid) + "/" + job_id_ + "-3";
    struct stat status {};
    EXPECT_NE(stat(directory.c_str(), &status), 0);
    if (description_.starts_with("cgroup ")) {
      const std::string cgroup = description_.substr(7, description_.size() - 8);
      EXPECT_NE(stat(cgroup.c_str(), &status), 0) << cgroup;
    }
  }

  LeakGuard guard_;
  const std::string job_id_ = random_job_id();
  bool parent_reaps_ = false;
  pid_t warden_ = -1;
  int transport_ = -1;
  std::string description_;
};

TEST_F(WardenTest, ExitsWithTheSupervisorsCode) {
  start_warden(leaves_with_seven);
  EXPECT_EQ(wait_code(), 7);
  EXPECT_FALSE(find_job_directory(job_id_, 3).ok());
}

TEST_F(WardenTest, ExitsWhileASupervisorThatSentItsExitNoticeRuns) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  parent_reaps_ = true;
  start_warden(stays_after_exit_notice);
  const std::string printed = line();
  const pid_t supervisor = std::atoi(printed.c_str());
  EXPECT_EQ(wait_code(), kSupervisorOk);
  int status = 0;
  EXPECT_EQ(waitpid(supervisor, &status, WNOHANG), 0)
      << "it must keep running as a child of this process";
  EXPECT_FALSE(find_job_directory(job_id_, 3).ok());
  close(std::exchange(transport_, -1));
  EXPECT_EQ(waitpid(supervisor, &status, 0), supervisor);
  EXPECT_EQ(WEXITSTATUS(status), 6);
  // A real supervisor removes its cgroup before it sends its exit notice.
  if (const std::size_t cgroup = printed.find('/'); cgroup != std::string::npos)
    EXPECT_EQ(rmdir(printed.substr(cgroup, printed.size() - cgroup - 1).c_str()), 0) << printed;
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(WardenTest, WaitsForTheSupervisorIfNoOtherProcessDoes) {
  start_warden(stays_after_exit_notice);
  ASSERT_GT(std::atoi(line().c_str()), 0);
  close(std::exchange(transport_, -1));
  EXPECT_EQ(wait_code(), 6);
}

TEST_F(WardenTest, KillsTheJobOfASupervisorThatDiesWithoutAnExitNotice) {
  parent_reaps_ = true;
  kill_the_supervisor_and_expect_nothing(geteuid());
}

TEST_F(WardenTest, ReportsHowItContainsTheJob) {
  start_warden(reports_output_of_warden);
  const std::string printed = line();
  EXPECT_TRUE(printed.starts_with("cgroup /") || printed.starts_with("process tree (")) << printed;
  EXPECT_TRUE(printed.ends_with("|there\n")) << printed;
  EXPECT_EQ(wait_code(), 0);
}

TEST_F(WardenTest, HandsOverACleanProcess) {
  start_warden(describes_itself);
  EXPECT_EQ(line(), "parent 1 subreaper 1 session 1 descriptors 8 signals 110\n");
  EXPECT_EQ(wait_code(), 0);
}

TEST_F(WardenTest, KillsTheJobWhenTheSupervisorIsKilled) {
  kill_the_supervisor_and_expect_nothing(geteuid());
}

TEST_F(WardenTest, KillsTheJobOfAnUnprivilegedUserWithoutACgroup) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can become another user; the test above ran as an ordinary one";
  kill_the_supervisor_and_expect_nothing(kOrdinaryUser);
  EXPECT_TRUE(description_.starts_with("process tree (")) << description_;
  rmdir("/tmp/ivyrun-65534");
}

TEST_F(WardenTest, KillsDescendantsThatHaveLeftTheirCgroup) {
  start_warden(keeps_workers_that_left_their_cgroup);
  const std::vector<pid_t> pids = read_pids();
  ASSERT_EQ(pids.size(), 5u);
  const bool is_cgroup = description_.starts_with("cgroup ");
  if (is_cgroup) {
    EXPECT_TRUE(description_.ends_with(" holds 0\n")) << description_;
  }
  kill(pids[0], SIGKILL);
  EXPECT_EQ(wait_code(), 128 + SIGKILL);
  for (const pid_t pid : pids) EXPECT_TRUE(has_exited(pid)) << pid;
  if (!is_cgroup) GTEST_SKIP() << "no cgroup v2 that can be written: " << description_;
}

TEST_F(WardenTest, OutlivesPoliteSignals) {
  start_warden(keeps_stubborn_workers);
  const std::vector<pid_t> pids = read_pids();
  ASSERT_EQ(pids.size(), 6u);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGALRM, SIGSEGV}) {
    kill(warden_, number);
  }
  EXPECT_EQ(waitpid(warden_, nullptr, WNOHANG), 0);
  EXPECT_FALSE(has_exited(pids[0]));
  kill(pids[0], SIGTERM);
  EXPECT_EQ(wait_code(), 128 + SIGTERM);
  for (const pid_t pid : pids) EXPECT_TRUE(has_exited(pid)) << pid;
}

TEST_F(WardenTest, ReportsOnTheTransportWhyItCannotStart) {
  const Result<JobDirectory> taken = make_job_directory(job_id_, 3);
  ASSERT_TRUE(taken.ok());
  start_warden(leaves_with_seven);
  EXPECT_EQ(line(), std::string(kFailurePrefix) +
                        "this job is already running on this host: " + taken->path + "\n");
  EXPECT_EQ(wait_code(), kWardenFailed);
  remove_job_directory(*taken);
  close(taken->lock_fd);
}

TEST(WardenArgumentsTest, AreParsed) {
  std::vector<std::string> words = {"--job", std::string(32, 'a'), "--host", "12", "--transport-fd",
                                    "3",     "--transport",        "relay"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  const auto start = parse_warden_arguments(static_cast<int>(argv.size()), argv.data());
  ASSERT_TRUE(start.ok());
  EXPECT_EQ(start->job_id, std::string(32, 'a'));
  EXPECT_EQ(start->host, 12u);
  EXPECT_EQ(start->peer, LinkPeer::kRelay);
}

TEST(WardenArgumentsTest, AreRejectedIfInvalid) {
  const std::string job(32, 'a');
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"--host", "1"},
                                                       {"--job", "abc"},
                                                       {"--job", job, "--host", "-1"},
                                                       {"--job", job, "--host", "1x"},
                                                       {"--job", job, "--transport", "pigeon"},
                                                       {"--job", job, "--transport-fd", "2"},
                                                       {"--job", job, "--nonsense", "1"},
                                                       {"--job", job, "--host"}};
  for (std::vector<std::string> words : wrong) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    EXPECT_FALSE(parse_warden_arguments(static_cast<int>(argv.size()), argv.data()).ok());
  }
}

}  // namespace
}  // namespace ivy::test
