// SPDX-License-Identifier: Apache-2.0
// Drain, and end-to-end flow control. Method: a service in this process, real supervisors.
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "agent/daemon/jobs/job_transport.h"
#include "agent/node/spawn/job_directory.h"
#include "tests/agent/agent_fixture.h"
#include "tests/agent/node_fixture.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class AgentDrainTest : public AgentFixture {
 protected:
  AgentDrainTest() { put_bundle(); }
  grpc::Status status_of(const agent::v1::OpenJob& job) {
    return AgentStream(channel(), job).status();
  }
};

TEST_F(AgentDrainTest, RejectsNewJobsUntilItIsUndone) {
  ASSERT_TRUE(start_agent());
  StreamLauncher running(kBundle);
  start_sleeper(running);
  ASSERT_TRUE(drain(false).ok());
  EXPECT_TRUE(facts().draining());
  EXPECT_EQ(status().back(), "draining, 1 job");
  StreamLauncher late(kBundle);
  const grpc::Status rejected = status_of(late.job());
  EXPECT_EQ(rejected.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(rejected.error_message().find("draining"), std::string::npos);
  // A running job can still be reached.
  running.open(channel(), true);
  running.serve(milliseconds(100));
  EXPECT_TRUE(running.stream().opened());
  ASSERT_TRUE(drain(false, true).ok());
  late.open(channel());
  late.send_hello();
  late.finish();
  running.finish();
  EXPECT_TRUE(all_exited(running));
}

TEST_F(AgentDrainTest, ContinuesAfterARestartOfTheAgent) {
  ASSERT_TRUE(start_agent());
  ASSERT_TRUE(drain(false).ok());
  end_agent();
  ASSERT_TRUE(start_agent());
  EXPECT_TRUE(facts().draining());
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings().front().find("ivy-agent drain --undo"), std::string::npos);
  EXPECT_EQ(status_of(StreamLauncher(kBundle).job()).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(drain(false, true).ok());
  end_agent();
  ASSERT_TRUE(start_agent());
  EXPECT_FALSE(facts().draining());
}

TEST_F(AgentDrainTest, StopsJobsInOrderOnRequest) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.start(1, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done");
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
  ASSERT_TRUE(drain(true).ok());
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  EXPECT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\nbye\n"; }));
  EXPECT_EQ(launcher.report_reason(), "the supervisor received SIGTERM");
  launcher.finish();
  EXPECT_TRUE(has_outcome(audit_of(launcher.job_id()), "stopped before its workers had ended"));
}

TEST_F(AgentDrainTest, StopsWithTheGraceOfTheRequest) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  launcher.open(channel());
  launcher.send_hello();
  launcher.start(1, "trap '' TERM; echo ready; while :; do sleep 0.05; done");
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
  const agent::v1::StopReply patient = stop(launcher.job_id(), 600'000);
  EXPECT_EQ(patient.supervisors(), 1u);
  EXPECT_EQ(patient.with_grace(), 1u);
  EXPECT_EQ(stop(launcher.job_id(), 0).with_grace(), 1u);
  EXPECT_TRUE(launcher.wait([&] { return launcher.has_report(); }, scaled_time(seconds(3))));
  launcher.finish();
}

// A supervisor of an older version has not written the file that holds its grace.
TEST_F(AgentDrainTest, ReportsThatASupervisorUsesItsOwnGrace) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  const Result<JobDirectory> directory = find_job_directory(launcher.job_id(), 0);
  ASSERT_TRUE(directory.ok());
  ASSERT_EQ(unlink((directory->path + "/stop-grace-ms").c_str()), 0);
  const agent::v1::StopReply reply = stop(launcher.job_id(), 0);
  EXPECT_EQ(reply.supervisors(), 1u);
  EXPECT_EQ(reply.with_grace(), 0u);
  EXPECT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  launcher.finish();
}

// Its launcher has sent nothing yet, and may never do so.
TEST_F(AgentDrainTest, ImmediatelyStopsAJobThatHasNotStarted) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  AgentStream stream(channel(), launcher.job());
  ASSERT_TRUE(stream.opened());
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(drain(true).ok());
  const std::string audit = audit_of(launcher.job_id());
  EXPECT_TRUE(has_outcome(audit, "no worker was started")) << audit;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(seconds(3)));
  EXPECT_TRUE(warnings().empty());
}

TEST_F(AgentDrainTest, RejectsCallsFromOtherHosts) {
  ASSERT_TRUE(start_agent());
  calls_over_tcp_ = true;
  EXPECT_EQ(drain(true).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_FALSE(facts().draining());
}

// ---- Flow control -------------------------------------------------------------------------------

long resident_kib() {
  std::ifstream status("/proc/self/statm");
  long total = 0;
  long resident = 0;
  status >> total >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST_F(AgentDrainTest, BlocksTheWriterWhileTheReaderPauses) {
  ASSERT_TRUE(start_agent());
  constexpr std::uint64_t kMuch = 256u << 20;
  StreamLauncher launcher(kBundle, kMuch);
  launcher.open(channel());
  launcher.send_hello();
  launcher.start(1, "echo ready; exec 2>/dev/null; head -c 134217728 /dev/zero");
  ASSERT_TRUE(launcher.wait([&] { return !launcher.output(0).empty(); }));
  const long before = resident_kib();
  launcher.stream().pause();
  // Credit covers all of the output, so only the transports' own limits hold the worker up. Waits
  // until the memory no longer changes:
  long seen = 0;
  EXPECT_TRUE(eventually(
      [&] {
        const long last = std::exchange(seen, resident_kib());
        std::this_thread::sleep_for(milliseconds(300));
        return std::abs(resident_kib() - last) < 64;
      },
      seconds(20)));
  // AddressSanitizer keeps freed memory for a while.
#ifdef __SANITIZE_ADDRESS__
  constexpr long kMaxKib = 48 * 1024;
#else
  constexpr long kMaxKib = 16 * 1024;
#endif
  EXPECT_LT(resident_kib() - before, kMaxKib) << "KiB more while nothing is read";
  launcher.stream().resume();
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }, seconds(60)));
  ASSERT_TRUE(
      launcher.wait([&] { return launcher.output(0).size() == 6 + 134217728u; }, seconds(60)));
  launcher.finish();
}

TEST_F(AgentDrainTest, BlocksTheLauncherWhileTheSupervisorDoesNotRead) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  start_sleeper(launcher);
  pid_t supervisor = 0;
  for (const pid_t pid : launcher.processes()) {
    std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
    std::string name;
    comm >> name;
    if (name == "ivy-supervisor") supervisor = pid;
  }
  ASSERT_GT(supervisor, 1);
  kill(supervisor, SIGSTOP);
  std::atomic<std::uint64_t> written = 0;
  std::atomic<bool> has_failed = false;
  std::thread writer([&] {
    const std::string data(JobTransport::kMaxDataBytes, '\0');
    for (int i = 0; i < 4096 && launcher.stream().write(data); ++i) written += data.size();
    has_failed = true;
  });
  // Waits until the count no longer changes.
  std::uint64_t seen = 1;
  EXPECT_TRUE(eventually(
      [&] {
        const std::uint64_t last = std::exchange(seen, written.load());
        std::this_thread::sleep_for(milliseconds(300));
        return last == seen && written == seen;
      },
      seconds(20)));
  RecordProperty("bytes_under_way", static_cast<int>(seen));
  EXPECT_FALSE(has_failed);
  EXPECT_LT(seen, 16u << 20);
  kill(supervisor, SIGCONT);
  // These zeros are not frames: the supervisor closes this transport and nothing else.
  writer.join();
  EXPECT_TRUE(launcher.stream().status().ok());
  EXPECT_EQ(list().jobs_size(), 1);
  EXPECT_FALSE(launcher.processes().empty());
  ASSERT_TRUE(drain(true).ok());
  EXPECT_TRUE(eventually([&] { return launcher.processes().size() <= 2; }));
  launcher.open(channel(), true);
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
}

TEST_F(AgentDrainTest, EndsTheStreamOnAMessageAboveTheLimit) {
  ASSERT_TRUE(start_agent());
  StreamLauncher launcher(kBundle);
  AgentStream stream(channel(), launcher.job());
  ASSERT_TRUE(stream.opened());
  stream.write(std::string(JobTransport::kMaxDataBytes + 1, 'x'));
  EXPECT_EQ(stream.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  launcher.open(channel(), true);
  launcher.send_hello();
  launcher.finish();
  EXPECT_TRUE(all_exited(launcher));
}

TEST(SocketEnd, DependsOnTheEndOfTheStreamAndItsSilence) {
  using Row = std::tuple<StreamEnd, int, SocketEnd>;
  for (const auto& [end, silence_ms, expected] :
       {Row{StreamEnd::kRequestsEnded, 0, SocketEnd::kHalfClose},
        Row{StreamEnd::kRequestsEnded, 60'000, SocketEnd::kHalfClose},
        Row{StreamEnd::kBroken, 0, SocketEnd::kHalfClose},
        Row{StreamEnd::kBroken, 5'000, SocketEnd::kHalfClose},
        Row{StreamEnd::kBroken, 5'001, SocketEnd::kHoldOpen}})
    EXPECT_EQ(socket_end_of(end, milliseconds(silence_ms)), expected) << silence_ms;
}

}  // namespace
}  // namespace ivy::test
