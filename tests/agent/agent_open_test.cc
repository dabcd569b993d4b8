// SPDX-License-Identifier: Apache-2.0
// Open through the agent's service to a real supervisor: new, reattached, requested twice, and
// again after a restart of the agent. Method: a service in this process, a real ivy-node, real
// workers.
#include <signal.h>

#include <algorithm>
#include <fstream>

#include "agent/daemon/jobs/job_transport.h"
#include "tests/agent/agent_fixture.h"
#include "tests/agent/node_fixture.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool has_name(pid_t pid, const std::string& wanted) {
  std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  comm >> name;
  return name == wanted;
}
bool is_supervisor(pid_t pid) { return has_name(pid, "ivy-supervisor"); }

class AgentOpenTest : public AgentFixture {
 protected:
  AgentOpenTest() { put_bundle(); }
  grpc::Status status_of(const agent::v1::OpenJob& job) {
    return AgentStream(channel(), job).status();
  }
};

TEST_F(AgentOpenTest, RunsAJobToItsEnd) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  ASSERT_TRUE(launcher.stream().opened());
  EXPECT_FALSE(launcher.stream().answer().reattached());
  EXPECT_EQ(launcher.stream().answer().version(), "test");
  launcher.start(2, "seq 1 50000");
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  EXPECT_EQ(launcher.exited(1).value().code(), 0);
  EXPECT_TRUE(launcher.wait([&] { return launcher.output(0).ends_with("\n50000\n"); }));
  EXPECT_EQ(list().jobs_size(), 1);
  EXPECT_TRUE(list().jobs(0).attached());
  EXPECT_EQ(list().jobs(0).job().user(), "alice");
  EXPECT_EQ(facts().jobs(), 1u);
  launcher.finish();
  EXPECT_TRUE(launcher.stream().status().ok());
  const std::string line = audit_of(launcher.job_id());
  EXPECT_TRUE(has_outcome(line, "all workers succeeded")) << line;
  EXPECT_NE(line.find(" user=alice hosts=node1 command_sha256=5555"), std::string::npos) << line;
  EXPECT_EQ(list().jobs_size(), 0);
  EXPECT_EQ(status().back(), "0 jobs");
}

TEST_F(AgentOpenTest, DistinguishesAFailureFromASuccess) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.start(1, "exit 7");
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  launcher.finish();
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "a worker failed"));
}

TEST_F(AgentOpenTest, DoesNotStartAFinishedJobAgain) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.finish();
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "no worker was started"));
  EXPECT_EQ(status_of(launcher.job()).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(status_of(launcher.job(true)).error_code(), grpc::StatusCode::NOT_FOUND);
  // The tombstone outlives the agent.
  end_agent();
  ASSERT_TRUE(start_agent());
  EXPECT_EQ(status_of(launcher.job()).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // Another host number of the same job does not share the tombstone.
  agent::v1::OpenJob other = launcher.job(true);
  other.set_host(1);
  EXPECT_EQ(status_of(other).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AgentOpenTest, ReattachesToARunningJob) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  launcher.open(channel(), true);
  ASSERT_TRUE(launcher.stream().opened());
  EXPECT_TRUE(launcher.stream().answer().reattached());
  launcher.finish();
  EXPECT_EQ(launcher.exited(0).value().signal(), SIGTERM);
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "stopped before its workers had ended"));
  EXPECT_TRUE(all_exited(launcher));
}

TEST_F(AgentOpenTest, StartsOneSupervisorForFiftyConcurrentOpens) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  const auto shared = channel();
  std::vector<std::unique_ptr<AgentStream>> streams;
  for (int i = 0; i < 50; ++i)
    streams.push_back(std::make_unique<AgentStream>(shared, launcher.job()));
  int started = 0;
  for (const auto& stream : streams) {
    ASSERT_TRUE(stream->opened()) << stream->status().error_message();
    if (!stream->answer().reattached()) ++started;
  }
  EXPECT_EQ(started, 1);
  EXPECT_EQ(list().jobs_size(), 1);
  const auto supervisors = [&] {
    const std::vector<pid_t> pids = launcher.processes();
    return std::count_if(pids.begin(), pids.end(), is_supervisor);
  };
  EXPECT_TRUE(eventually([&] { return supervisors() == 1; }));
  // None of these connections has authenticated, and the supervisor has room for eight of them: a
  // launcher that connects in between is rejected and dials again.
  streams.clear();
  ASSERT_TRUE(eventually([&] {
    launcher.open(shared);
    launcher.serve(milliseconds(200));
    return !launcher.stream().has_ended();
  }));
  launcher.send_hello();
  launcher.finish();
  audit_of(launcher.job_id());
  EXPECT_TRUE(all_exited(launcher));
}

TEST_F(AgentOpenTest, RejectsAnotherJobWithTheSameId) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  agent::v1::OpenJob other = launcher.job();
  other.mutable_job()->set_command_sha256(std::string(64, '6'));
  EXPECT_EQ(status_of(other).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
}

TEST_F(AgentOpenTest, RejectsInvalidOpenMessages) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  agent::v1::OpenJob job = launcher.job();
  job.set_job_id("../../etc/passwd");
  EXPECT_EQ(status_of(job).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  job = launcher.job();
  job.set_bundle("../../../0123456789abcdef");
  EXPECT_EQ(status_of(job).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  job = launcher.job();
  job.mutable_job()->set_program(std::string(65u << 10, 'x'));
  EXPECT_EQ(status_of(job).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // A launcher of 0.1.0 sends the address of another host, so nothing may start here.
  job = launcher.job();
  job.set_target("node2 10.0.0.2:7411");
  EXPECT_EQ(status_of(job).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(AgentOpenTest, ReportsWhichBundleItNeeds) {
  std::filesystem::remove_all(bundle_directory());
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  AgentStream stream(channel(), launcher.job());
  EXPECT_EQ(stream.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(stream.trailer("ivy-need"), architecture_);
  EXPECT_TRUE(std::filesystem::is_empty(state_directory()) ||
              !std::filesystem::exists(state_directory() + "/" + launcher.job_id() + "-0.job"));
}

TEST_F(AgentOpenTest, KeepsJobsRunningDuringARestart) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.start(1, "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.01; done");
  ASSERT_TRUE(launcher.wait([&] { return launcher.started(0).has_value(); }));
  const pid_t worker = launcher.started(0).value().pid();
  for (int restart = 0; restart < 5; ++restart) {
    end_agent();
    EXPECT_FALSE(has_exited(worker));
    ASSERT_TRUE(start_agent());
    EXPECT_EQ(list().jobs_size(), 1);
    EXPECT_EQ(list().jobs(0).job_id(), launcher.job_id());
    launcher.open(channel(), true);
    launcher.serve(milliseconds(200));
    EXPECT_TRUE(launcher.stream().opened());
  }
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }, seconds(30)));
  std::string expected;
  for (int i = 1; i <= 400; ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(launcher.output(0), expected);
  EXPECT_EQ(launcher.exited(0).value().code(), 0);
  launcher.finish();
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "all workers succeeded"));
}

TEST_F(AgentOpenTest, ReportsAJobThatEndedWhileNoAgentRan) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  end_agent();
  // SIGKILL to the supervisor: the warden kills the workers and records the outcome.
  pid_t supervisor = 0;
  for (const pid_t pid : launcher.processes())
    if (is_supervisor(pid)) supervisor = pid;
  ASSERT_GT(supervisor, 1);
  kill(supervisor, SIGKILL);
  ASSERT_TRUE(all_exited(launcher));
  EXPECT_TRUE(audit().empty());
  ASSERT_TRUE(start_agent());
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "the supervisor was killed by SIGKILL"));
  EXPECT_EQ(status_of(launcher.job(true)).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AgentOpenTest, NoticesAKilledWarden) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  for (const pid_t pid : launcher.processes())
    if (has_name(pid, "ivy-warden")) kill(pid, SIGKILL);
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  EXPECT_EQ(list().jobs_size(), 1);
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "its warden was killed"));
}

TEST_F(AgentOpenTest, HalfCloseStopsAJobWhoseLauncherDoesNotComeBack) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  launcher.stream().half_close();
  launcher.stop_responding();
  EXPECT_TRUE(all_exited(launcher, seconds(6)));
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "ended because the launcher was lost"));
}

TEST_F(AgentOpenTest, TreatsABrokenStreamOfARunningLauncherAsAHalfClose) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  launcher.drop_stream();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(all_exited(launcher, seconds(6)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(900));
}

TEST_F(AgentOpenTest, TreatsABrokenStreamAfterASilenceAsSilence) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  std::this_thread::sleep_for(JobTransport::kReceivedWithin + milliseconds(300));
  launcher.drop_stream();
  // A half-close would have stopped the job after a second.
  std::this_thread::sleep_for(milliseconds(2500));
  EXPECT_FALSE(launcher.processes().empty());
  EXPECT_FALSE(list().jobs(0).attached());
  launcher.open(channel(), true);
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
}

// The last message of this stream was never delivered when the stream breaks. Whether the read or
// the write fails first, the transport keeps reading its socket and so notices when the supervisor
// closes it.
TEST_F(AgentOpenTest, ClosesTheSocketOfAStreamThatBreaksDuringAWrite) {
  ASSERT_TRUE(start_agent());
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  constexpr std::uint64_t kMuch = 256u << 20;
  StreamLauncher launcher(kBundle, kMuch);
  const auto shared = channel();
  launcher.open(shared);
  launcher.send_hello();
  launcher.start(1, "echo ready; exec 2>/dev/null; exec head -c 67108864 /dev/zero");
  ASSERT_TRUE(launcher.wait([&] { return !launcher.output(0).empty(); }));
  const auto before = descriptors();
  launcher.stream().pause();
  std::this_thread::sleep_for(JobTransport::kReceivedWithin + milliseconds(300));
  launcher.drop_stream();
  ASSERT_TRUE(eventually([&] { return !list().jobs(0).attached(); }));
  launcher.open(shared, true);
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }, seconds(60)));
  // The supervisor closed the first socket when the second one authenticated.
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; }));
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
}

}  // namespace
}  // namespace ivy::test
