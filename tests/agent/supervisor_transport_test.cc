// SPDX-License-Identifier: Apache-2.0
// Transports: which peers the supervisor accepts, the meaning of a transport's end, and that a new
// transport continues where the old one broke. Method: a real ivy-node over socketpairs and its
// command socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "proto/contract/build.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_launcher.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr char kSleeper[] = "echo ready; exec sleep 600";

class SupervisorTransportTest : public testing::Test {
 protected:
  static FakeLauncher::Options relay() {
    FakeLauncher::Options options;
    options.peer = LinkPeer::kRelay;
    return options;
  }
  static void start_sleeper(FakeLauncher& launcher) {
    launcher.send_hello();
    launcher.start(launcher.shell_plan(1, kSleeper));
    ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
  }
  static bool gone(FakeLauncher& launcher, milliseconds deadline) {
    return launcher.wait([&] { return launcher.job_processes().empty(); }, deadline);
  }
  // Sends bytes to the command socket; returns the answer up to the end of the connection.
  static std::string send_to_socket(FakeLauncher& launcher, const std::string& bytes) {
    const Result<JobDirectory> directory = find_job_directory(launcher.job_id(), 0);
    EXPECT_TRUE(directory.ok());
    const Result<int> fd = connect_to_command_socket(*directory);
    EXPECT_TRUE(fd.ok());
    EXPECT_EQ(send(*fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    std::string answer;
    const auto closed = [&] {
      pollfd poller{*fd, POLLIN, 0};
      if (poll(&poller, 1, 0) <= 0) return false;
      char buffer[4096];
      const ssize_t count = read(*fd, buffer, sizeof buffer);
      if (count > 0) answer.append(buffer, static_cast<std::size_t>(count));
      return count <= 0;
    };
    EXPECT_TRUE(launcher.wait(closed)) << "the supervisor kept an unauthenticated connection";
    ::close(*fd);
    return answer;
  }
  static std::string attach_bytes(const session::AttachRequest& request) {
    const std::string payload = session::encode_attach(request);
    session::FrameHeader header;
    header.type = session::FrameType::kAttach;
    header.length = static_cast<std::uint32_t>(payload.size());
    return std::string(session::kPreamble) + session::encode_header(header) + payload;
  }
  // Checks that none of these attempts affected the job.
  static void expect_undisturbed(FakeLauncher& launcher) {
    EXPECT_FALSE(launcher.link_ended());
    EXPECT_EQ(launcher.exits(), 0u);
    launcher.send_signal(SIGKILL);
    EXPECT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
    launcher.finish();
    EXPECT_EQ(launcher.wait_for_node(), 0);
  }

  LeakGuard leaks_;
};

TEST_F(SupervisorTransportTest, StopsWhenTheLauncherOnThisHostExits) {
  FakeLauncher launcher;
  start_sleeper(launcher);
  launcher.hang_up();
  EXPECT_TRUE(gone(launcher, milliseconds(800)));
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, ToleratesSilenceOfTheLauncherOnThisHost) {
  FakeLauncher::Options options;
  options.lease_ms = 500;
  FakeLauncher launcher(options);
  start_sleeper(launcher);
  launcher.stop_responding();
  launcher.serve(milliseconds(1500));
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, ExitsWhenTheLauncherDiesBeforeHello) {
  FakeLauncher launcher;
  launcher.hang_up();
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

// No other launcher can attach to such a job, so it does not wait for the limit of a first Hello.
TEST_F(SupervisorTransportTest, ExitsSoonWhenTheLauncherThatStartedItIsRejected) {
  FakeLauncher::Options options = relay();
  options.build = "old";
  FakeLauncher launcher(options);
  ASSERT_TRUE(launcher.wait([&] { return !launcher.rejection().empty(); }));
  EXPECT_NE(launcher.rejection().find("build old"), std::string::npos);
  EXPECT_EQ(launcher.wait_for_node(test::scaled_time(seconds(4))), 0);
}

// The launcher may already be on another transport, as when it changes from one agent connection to
// another.
TEST_F(SupervisorTransportTest, WaitsForALauncherThatEndsItsFirstTransportBeforeHello) {
  FakeLauncher launcher(relay());
  const int keeps_it_open = launcher.copy_of_link();
  launcher.half_close();
  launcher.hang_up();
  launcher.serve(seconds(2));
  launcher.reattach();
  ::close(keeps_it_open);
  launcher.send_hello();
  launcher.finish();
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, StopsOneSecondAfterAHalfClose) {
  FakeLauncher launcher(relay());
  start_sleeper(launcher);
  const Clock::time_point begin = Clock::now();
  launcher.half_close();
  EXPECT_TRUE(gone(launcher, seconds(4)));
  EXPECT_GE(Clock::now() - begin, milliseconds(900));
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, ContinuesWhenTheLauncherRedialsAfterAHalfClose) {
  FakeLauncher launcher(relay());
  start_sleeper(launcher);
  launcher.half_close();
  launcher.reattach();
  launcher.serve(milliseconds(2000));
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, WaitsForANewTransportAfterAHangUp) {
  FakeLauncher launcher(relay());
  start_sleeper(launcher);
  launcher.hang_up();
  launcher.serve(milliseconds(2500));
  EXPECT_FALSE(launcher.job_processes().empty());
  launcher.reattach();
  EXPECT_TRUE(launcher.wait([&] { return launcher.everything_acknowledged(); }));
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, StopsWhenARelaysLauncherIsSilentForTheLease) {
  FakeLauncher::Options options = relay();
  options.lease_ms = 1500;
  FakeLauncher launcher(options);
  start_sleeper(launcher);
  launcher.serve(milliseconds(2500));
  EXPECT_EQ(launcher.report(), nullptr) << "heartbeats did not keep the lease";
  launcher.stop_responding();
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(6)));
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_NE(launcher.report()->reason().find("lease"), std::string::npos);
  EXPECT_TRUE(launcher.exited(0)->after_stop());
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, SuspendsTheLeaseWhenAPauseIsAnnounced) {
  FakeLauncher::Options options = relay();
  options.lease_ms = 1500;
  FakeLauncher launcher(options);
  start_sleeper(launcher);
  Command command;
  command.mutable_pause();
  launcher.send(command);
  launcher.stop_responding();
  launcher.serve(milliseconds(3000));
  EXPECT_EQ(launcher.report(), nullptr);
  expect_undisturbed(launcher);
}

// As with `ivy-agent drain --stop`: no launcher fetches the report, and the host must become free.
TEST_F(SupervisorTransportTest, DoesNotWaitForASuspendedLauncherAfterSigterm) {
  FakeLauncher launcher(relay());
  start_sleeper(launcher);
  Command command;
  command.mutable_pause();
  launcher.send(command);
  launcher.stop_responding();
  launcher.serve(milliseconds(300));
  ASSERT_EQ(kill(launcher.supervisor_pid(), SIGTERM), 0);
  EXPECT_EQ(launcher.wait_for_node(), 0);
  ASSERT_NE(launcher.report(), nullptr);
  EXPECT_TRUE(launcher.report()->clean());
}

TEST_F(SupervisorTransportTest, DoesNotCountTheTimeInWhichItWasSuspended) {
  FakeLauncher::Options options = relay();
  options.lease_ms = 2500;
  FakeLauncher launcher(options);
  start_sleeper(launcher);
  const pid_t supervisor = launcher.supervisor_pid();
  launcher.stop_responding();
  ASSERT_EQ(kill(supervisor, SIGSTOP), 0);
  launcher.serve(milliseconds(4000));
  ASSERT_EQ(kill(supervisor, SIGCONT), 0);
  launcher.serve(milliseconds(600));
  launcher.resume_sending();
  launcher.serve(milliseconds(1500));
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, ReplaysEachFrameOnceAcrossManyTransports) {
  FakeLauncher::Options options = relay();
  options.window_bytes = 128u << 10;
  FakeLauncher launcher(options);
  launcher.send_hello();
  launcher.start(launcher.shell_plan(2, "seq 1 200000; exit 5"));
  for (int breaks = 1; breaks <= 5; ++breaks) {
    const std::size_t target = static_cast<std::size_t>(breaks) * 200'000;
    ASSERT_TRUE(launcher.wait([&] { return launcher.output(0).size() >= target; }));
    launcher.hang_up();
    launcher.reattach();
  }
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  ASSERT_TRUE(launcher.wait([&] { return launcher.output_ended(0) && launcher.output_ended(1); }));
  std::ostringstream expected;
  for (int i = 1; i <= 200000; ++i) expected << i << '\n';
  EXPECT_TRUE(launcher.output(0) == expected.str());
  EXPECT_TRUE(launcher.output(1) == expected.str());
  EXPECT_EQ(launcher.exits(), 2u);
  EXPECT_EQ(launcher.exited(1)->code(), 5);
  launcher.finish();
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, KeepsTheReportForALauncherThatReattaches) {
  FakeLauncher launcher(relay());
  launcher.send_hello();
  launcher.start(launcher.shell_plan(1, "sleep 0.3; echo late; exit 7"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.started(0) != nullptr; }));
  launcher.hang_up();
  EXPECT_TRUE(launcher.wait([&] { return launcher.job_processes().empty(); }));
  launcher.reattach();
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_EQ(launcher.exited(0)->code(), 7);
  EXPECT_TRUE(launcher.wait([&] { return launcher.output_ended(0); }));
  EXPECT_EQ(launcher.output(0), "late\n");
  launcher.finish();
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorTransportTest, RejectsAWrongToken) {
  FakeLauncher launcher;
  start_sleeper(launcher);
  const std::string answer = send_to_socket(
      launcher, attach_bytes({launcher.job_id(), std::string(32, 'u'), std::string(build_name())}));
  EXPECT_NE(answer.find("the token is not this job's"), std::string::npos);
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, RejectsAnotherJobAndAnotherBuild) {
  FakeLauncher launcher;
  start_sleeper(launcher);
  EXPECT_NE(send_to_socket(launcher, attach_bytes({std::string(32, '0'), launcher.token(),
                                                   std::string(build_name())}))
                .find("another job"),
            std::string::npos);
  EXPECT_NE(send_to_socket(launcher, attach_bytes({launcher.job_id(), launcher.token(), "old"}))
                .find("build old"),
            std::string::npos);
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, ClosesInvalidTransportsWhileTheJobRuns) {
  FakeLauncher launcher;
  start_sleeper(launcher);
  const std::string preamble(session::kPreamble);
  session::FrameHeader large;
  large.type = session::FrameType::kAttach;
  large.length = 1u << 20;
  session::FrameHeader command;
  command.type = session::FrameType::kCommand;
  const std::string junk[] = {
      std::string(4096, '\xff'),
      "GET / HTTP/1.1\r\n\r\n" + std::string(2000, 'x'),
      preamble + std::string(session::kHeaderBytes, '\0'),
      preamble + session::encode_header(large),
      preamble + session::encode_header(command),
  };
  for (const std::string& bytes : junk) send_to_socket(launcher, bytes);
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, LimitsConnectionsThatDoNotAttach) {
  FakeLauncher launcher;
  start_sleeper(launcher);
  const Result<JobDirectory> directory = find_job_directory(launcher.job_id(), 0);
  ASSERT_TRUE(directory.ok());
  std::vector<int> strangers;
  for (int i = 0; i < 12; ++i) {
    const Result<int> fd = connect_to_command_socket(*directory);
    ASSERT_TRUE(fd.ok());
    strangers.push_back(*fd);
  }
  const auto closed = [&] {
    int count = 0;
    for (const int fd : strangers) {
      pollfd poller{fd, POLLIN, 0};
      if (poll(&poller, 1, 0) > 0 && (poller.revents & POLLHUP) != 0) ++count;
    }
    return count;
  };
  EXPECT_TRUE(launcher.wait([&] { return closed() == 4; }));
  EXPECT_TRUE(launcher.wait([&] { return closed() == 12; }, seconds(8)));
  for (const int fd : strangers) ::close(fd);
  expect_undisturbed(launcher);
}

TEST_F(SupervisorTransportTest, ClosesTheOlderTransportWhenANewerOneAttaches) {
  FakeLauncher launcher(relay());
  start_sleeper(launcher);
  const int older = launcher.copy_of_link();
  launcher.reattach();
  const auto hung_up = [&] {
    pollfd poller{older, POLLIN, 0};
    return poll(&poller, 1, 0) > 0 && (poller.revents & POLLHUP) != 0;
  };
  EXPECT_TRUE(launcher.wait(hung_up));
  ::close(older);
  expect_undisturbed(launcher);
}

// More than may wait for an acknowledgement: error files are dropped, but exits are not.
TEST_F(SupervisorTransportTest, DeliversEveryExitAfterALongPauseInReading) {
  constexpr std::uint32_t kWorkers = 1100;
  constexpr std::size_t kFileBytes = 64u << 10;
  static_assert(kWorkers * kFileBytes > session::kMaxUnacknowledgedBytes);
  rlimit descriptors{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  if (descriptors.rlim_max < 7 * kWorkers) GTEST_SKIP() << "too few descriptors for this many";
  // Every worker blocks when it opens this FIFO until the test has seen all of them.
  const std::string gate = testing::TempDir() + "gate." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(gate.c_str(), 0600), 0);
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.start(
      launcher.shell_plan(kWorkers, ": < " + gate +
                                        "; printf '%65536s' x > $TORCHELASTIC_ERROR_FILE; "
                                        "exit $((RANK % 200 + 1))"));
  // Nothing is read in this time. The launcher is on the same host, so its silence does not stop
  // the job.
  ASSERT_TRUE(eventually([&] { return launcher.job_processes().size() >= kWorkers; }, seconds(30)));
  const int opened_gate = open(gate.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(eventually([&] { return launcher.job_processes().empty(); }, seconds(30)));
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(20)));
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_EQ(launcher.exits(), kWorkers);
  std::size_t files = 0;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    const Exited* exited = launcher.exited(rank);
    ASSERT_NE(exited, nullptr) << rank;
    EXPECT_EQ(exited->code(), static_cast<int>(rank % 200 + 1));
    if (exited->error_file().empty()) continue;
    EXPECT_EQ(exited->error_file().size(), kFileBytes);
    ++files;
  }
  // Half of the room is for files, and the starts and exits before them take some of it.
  EXPECT_LE(files, session::kMaxUnacknowledgedBytes / 2 / kFileBytes);
  EXPECT_GE(files, session::kMaxUnacknowledgedBytes / 2 / kFileBytes - 4);
  launcher.finish();
  EXPECT_EQ(launcher.wait_for_node(), 0);
  ::close(opened_gate);
  unlink(gate.c_str());
}

}  // namespace
}  // namespace ivy::test
