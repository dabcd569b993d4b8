// SPDX-License-Identifier: Apache-2.0
// State directories that an agent finds, and the files that it leaves there. Method: prepared
// directories, and a service in this process.
#include <fcntl.h>
#include <linux/sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "agent/daemon/jobs/job_registry.h"
#include "agent/daemon/jobs/open_call.h"
#include "agent/daemon/jobs/warden_start.h"
#include "agent/node/spawn/process_tree.h"
#include "tests/agent/agent_fixture.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/fork_as.h"

namespace ivy::test {
namespace {

class AgentRegistryTest : public AgentFixture {
 protected:
  AgentRegistryTest() {
    put_bundle();
    std::filesystem::create_directory(state_directory());
    chmod(state_directory().c_str(), 0700);
  }
  void leave(const std::string& name, const std::string& content) {
    std::ofstream(state_directory() + "/" + name, std::ios::binary) << content;
  }
  bool exists(const std::string& name) const {
    return std::filesystem::exists(state_directory() + "/" + name);
  }
  static JobRecord record_of(const std::string& job_id) {
    return JobRecord{.job_id = job_id,
                     .host = 0,
                     .opened_at = 1'767'323'045,
                     .boot_id = JobRegistry::boot_id(),
                     .certificate = "user/alice serial 4f02",
                     .from = "10.77.0.1:41234",
                     .description = {}};
  }
};

TEST_F(AgentRegistryTest, RejectsASecondAgentAndNamesTheFirst) {
  ASSERT_TRUE(start_agent());
  const Result<std::unique_ptr<JobRegistry>> second =
      JobRegistry::make(*loop_, state_directory(), *this);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().message.find("pid " + std::to_string(getpid())), std::string::npos)
      << second.error().message;
}

TEST_F(AgentRegistryTest, RejectsADirectoryThatOthersCanRead) {
  chmod(state_directory().c_str(), 0755);
  EXPECT_FALSE(start_agent());
  EXPECT_EQ(make_error_.code, Code::kPermissionDenied);
}

TEST_F(AgentRegistryTest, StartsDespiteDamagedRecords) {
  const std::string good = encode_job_record(record_of(random_job_id()));
  const std::string names[] = {random_job_id(), random_job_id(), random_job_id(), random_job_id()};
  leave(names[0] + "-0.job", "");
  leave(names[1] + "-0.job", good.substr(0, good.size() / 2));
  leave(names[2] + "-0.job", std::string(5000, '\xff'));
  leave(names[3] + "-0.job", good);  // It belongs to another job.
  leave("nonsense.job", good);
  leave("x", "y");
  std::filesystem::create_directory(state_directory() + "/" + random_job_id() + "-0.job");
  std::filesystem::create_symlink("/etc/passwd",
                                  state_directory() + "/" + random_job_id() + "-0.job");
  ASSERT_TRUE(start_agent());
  EXPECT_EQ(list().jobs_size(), 0);
  EXPECT_EQ(warnings().size(), 7u);
  EXPECT_TRUE(exists(names[1] + "-0.job.damaged"));
  EXPECT_TRUE(audit().empty());
  // Damaged files were renamed, so the next start does not warn again.
  end_agent();
  ASSERT_TRUE(start_agent());
  EXPECT_EQ(warnings().size(), 7u);
}

TEST_F(AgentRegistryTest, TreatsAJobOfAnotherBootAsFinished) {
  const std::string job = random_job_id();
  JobRecord record = record_of(job);
  record.boot_id = "another";
  leave(job + "-0.job", encode_job_record(record));
  leave(job + "-0.warden", "warden 1234 99\n");
  ASSERT_TRUE(start_agent());
  EXPECT_TRUE(has_outcome(audit_of(job), "host rebooted"));
  EXPECT_TRUE(eventually([&] { return exists(job + "-0.ended"); }));
  EXPECT_TRUE(eventually([&] { return !exists(job + "-0.warden"); }));
  EXPECT_FALSE(exists(job + "-0.job"));
}

// A home directory shared by hosts, on a file system that does not show one host's locks to
// another.
TEST_F(AgentRegistryTest, IgnoresTheRecordsOfAnotherMachine) {
  const std::string job = random_job_id();
  JobRecord record = record_of(job);
  record.machine = "another";
  record.boot_id = "another";
  leave(job + "-0.job", encode_job_record(record));
  leave(job + "-0.warden.new", "being written");
  ASSERT_TRUE(start_agent());
  EXPECT_EQ(list().jobs_size(), 0);
  EXPECT_TRUE(audit().empty());
  EXPECT_TRUE(warnings().empty());
  EXPECT_TRUE(exists(job + "-0.job"));
  EXPECT_TRUE(exists(job + "-0.warden.new"));
}

TEST_F(AgentRegistryTest, ReportsJobsThatEndedWhileNoAgentRan) {
  const std::string reported = random_job_id();
  leave(reported + "-0.job", encode_job_record(record_of(reported)));
  leave(reported + "-0.warden", "warden 1234 99\nexit 10\n");
  const std::string never = random_job_id();
  leave(never + "-0.job", encode_job_record(record_of(never)));
  const std::string killed = random_job_id();
  leave(killed + "-0.job", encode_job_record(record_of(killed)));
  // Our own pid with another start time: the warden's pid now belongs to another process.
  leave(killed + "-0.warden", "warden " + std::to_string(getpid()) + " 99\n");
  ASSERT_TRUE(start_agent());
  EXPECT_TRUE(has_outcome(audit_of(reported), "a worker failed"));
  EXPECT_TRUE(has_outcome(audit_of(never), "it never started"));
  EXPECT_TRUE(has_outcome(audit_of(killed), "its warden was killed"));
}

// The agent holds a descriptor of the process whose start time is in the record. It opens the
// descriptor before it checks the start time.
TEST_F(AgentRegistryTest, DetectsAReusedPidOfAWarden) {
  const pid_t warden = fork();
  while (warden == 0) pause();
  ProcessStat process;
  ASSERT_TRUE(read_process_stat(warden, process));
  const std::string job = random_job_id();
  leave(job + "-0.job", encode_job_record(record_of(job)));
  leave(job + "-0.warden",
        "warden " + std::to_string(warden) + " " + std::to_string(process.start_time) + "\n");
  usleep(30'000);  // Start times are in clock ticks.
  ASSERT_TRUE(start_agent());
  EXPECT_EQ(list().jobs_size(), 1);
  kill(warden, SIGKILL);
  waitpid(warden, nullptr, 0);
  const pid_t another = fork_as(warden);
  EXPECT_TRUE(has_outcome(audit_of(job), "its warden was killed"));
  EXPECT_EQ(list().jobs_size(), 0);
  if (another < 0) GTEST_SKIP() << "needs the right to choose a pid";
  EXPECT_EQ(kill(another, 0), 0) << "the other process must not be killed";
  kill(another, SIGKILL);
  waitpid(another, nullptr, 0);
}

// A warden writes a new file next to its record and then renames it. An agent that starts in
// between must not remove the new file.
TEST_F(AgentRegistryTest, KeepsAFileThatARunningWardenIsWriting) {
  const std::string alive = random_job_id();
  leave(alive + "-0.job", encode_job_record(record_of(alive)));
  leave(alive + "-0.warden.new", "warden 1234 99\nexit 10\n");
  leave(alive + "-0.job.new", "half");
  const std::string gone = random_job_id();
  leave(gone + "-0.warden.new", "war");
  ASSERT_TRUE(start_agent());
  EXPECT_FALSE(exists(alive + "-0.job.new"));
  EXPECT_FALSE(exists(gone + "-0.warden.new"));
  const std::string record = state_directory() + "/" + alive + "-0.warden";
  ASSERT_EQ(rename((record + ".new").c_str(), record.c_str()), 0);
  EXPECT_TRUE(has_outcome(audit_of(alive), "a worker failed"));
}

TEST_F(AgentRegistryTest, RemovesOldTombstones) {
  const std::string old_job = random_job_id();
  const std::string young_job = random_job_id();
  leave(old_job + "-0.ended", "");
  leave(young_job + "-0.ended", "");
  const timespec day_ago[2] = {{time(nullptr) - StateDirectory::kTombstoneSeconds - 60, 0},
                               {time(nullptr) - StateDirectory::kTombstoneSeconds - 60, 0}};
  utimensat(AT_FDCWD, (state_directory() + "/" + old_job + "-0.ended").c_str(), day_ago, 0);
  ASSERT_TRUE(start_agent());
  EXPECT_TRUE(eventually([&] { return !exists(old_job + "-0.ended"); }));
  EXPECT_TRUE(exists(young_job + "-0.ended"));
}

TEST_F(AgentRegistryTest, BoundsTheTombstones) {
  for (std::size_t i = 0; i < StateDirectory::kMaxTombstones + 10; ++i) {
    char id[33];
    std::snprintf(id, sizeof id, "%032zx", i);
    leave(std::string(id) + "-0.ended", "");
  }
  ASSERT_TRUE(start_agent());
  const auto left = [this] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(state_directory()))
      if (entry.path().extension() == ".ended") ++count;
    return count;
  };
  EXPECT_TRUE(eventually([&] { return left() == StateDirectory::kMaxTombstones; })) << left();
}

TEST_F(AgentRegistryTest, RejectsAJobByNameIfTheDiskIsFull) {
  if (mount("tmpfs", state_directory().c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0)
    GTEST_SKIP() << "mounting a tmpfs takes root";
  ASSERT_TRUE(start_agent());
  {
    std::ofstream filler(state_directory() + "/filler");
    filler << std::string(1u << 20, 'x');
  }
  StreamLauncher launcher(kBundle);
  const grpc::Status status = AgentStream(channel(), launcher.job()).status();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find(state_directory()), std::string::npos)
      << status.error_message();
  EXPECT_EQ(list().jobs_size(), 0);
  // Accepted once there is room: the rejection has left no record.
  unlink((state_directory() + "/filler").c_str());
  launcher.open(channel());
  launcher.send_hello();
  launcher.finish();
  audit_of(launcher.job_id());
  end_agent();
  EXPECT_EQ(umount2(state_directory().c_str(), MNT_DETACH), 0);
}

// The warden's last record does not fit, but the agent has the warden's exit code.
TEST_F(AgentRegistryTest, TakesTheOutcomeFromTheWardensExitCodeIfTheDiskIsFull) {
  if (mount("tmpfs", state_directory().c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0)
    GTEST_SKIP() << "mounting a tmpfs takes root";
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  {
    std::ofstream filler(state_directory() + "/filler");
    filler << std::string(1u << 20, 'x');
  }
  launcher.finish();
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "stopped before its workers had ended"))
      << audit_of(launcher.job_id());
  end_agent();
  EXPECT_EQ(umount2(state_directory().c_str(), MNT_DETACH), 0);
}

// ---- Decisions ----------------------------------------------------------------------------------

TEST(ChooseOpenAction, FollowsTheTable) {
  struct Row {
    OpenFacts facts;
    int expected;  // An OpenAction, or a negative Code.
  };
  constexpr int kAttach = static_cast<int>(OpenAction::kAttach);
  constexpr int kStart = static_cast<int>(OpenAction::kStart);
  constexpr int kNeed = static_cast<int>(OpenAction::kRequestBundle);
  constexpr int kExists = -static_cast<int>(Code::kAlreadyExists);
  constexpr int kNotFound = -static_cast<int>(Code::kNotFound);
  constexpr int kUnavailable = -static_cast<int>(Code::kUnavailable);
  // reattach, runs, same_description, has_ended, draining, has_bundle
  const Row rows[] = {
      {{false, false, false, false, false, true}, kStart},
      {{false, false, false, false, false, false}, kNeed},
      {{false, false, false, false, true, true}, kUnavailable},
      {{false, false, false, true, false, true}, kExists},
      {{false, false, false, true, true, true}, kExists},
      {{false, true, true, false, false, false}, kAttach},
      {{false, true, true, false, true, false}, kAttach},
      {{false, true, false, false, false, false}, kExists},
      {{true, true, false, false, false, false}, kAttach},
      {{true, true, false, false, true, false}, kAttach},
      {{true, false, false, false, false, true}, kNotFound},
      {{true, false, false, true, false, true}, kNotFound},
  };
  for (const Row& row : rows) {
    const Result<OpenAction> action = choose_open_action(row.facts);
    EXPECT_EQ(action.ok() ? static_cast<int>(*action) : -static_cast<int>(action.error().code),
              row.expected)
        << &row - rows;
  }
}

TEST(EnvironmentForJobs, OmitsTheAgentsVariables) {
  const Environment kept = environment_for_jobs({{"PATH", "/bin"},
                                                 {"NOTIFY_SOCKET", "/run/x"},
                                                 {"WATCHDOG_USEC", "1"},
                                                 {"LISTEN_FDS", "1"},
                                                 {"JOURNAL_STREAM", "1:2"},
                                                 {"INVOCATION_ID", "a"},
                                                 {"STATE_DIRECTORY", "/var/lib/x"},
                                                 {"CREDENTIALS_DIRECTORY", "/run/c"},
                                                 {"SSH_AUTH_SOCK", "/tmp/a"},
                                                 {"MY_DIRECTORY", "/data"},
                                                 {"XDG_RUNTIME_DIR", "/run/user/7"},
                                                 {"HOME", "/home/alice"}});
  const Environment expected = {{"PATH", "/bin"},
                                {"MY_DIRECTORY", "/data"},
                                {"XDG_RUNTIME_DIR", "/run/user/7"},
                                {"HOME", "/home/alice"}};
  EXPECT_EQ(kept, expected);
}

}  // namespace
}  // namespace ivy::test
