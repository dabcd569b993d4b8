// SPDX-License-Identifier: Apache-2.0
// The relay as sshd runs it: a process with pipes for standard input and output.
#include "agent/node/roles/relay.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "agent/node/roles/warden.h"
#include "agent/node/spawn/job_directory.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

struct Relay {
  Pipe input;
  Pipe output;
  SpawnedProcess process;
  int in() const { return input.writer(); }
  int out() const { return output.reader(); }
};

class RelayTest : public testing::Test {
 protected:
  ~RelayTest() override { unlink(log_.c_str()); }

  void start_relay(Relay& relay, const std::string& first_bytes) {
    SpawnRequest request = request_for("echo_node", {"relay"});
    request.environment = {{"IVY_TEST_LOG", log_}};
    request.stdin_fd = relay.input.reader();
    request.stdout_fd = relay.output.writer();
    relay.process = spawn(request).process;
    relay.input.close_end(0);
    relay.output.close_end(1);
    send(relay, first_bytes);
  }
  std::string open_line(const std::string& verb) const {
    return "IVYOPEN 1 " + verb + " " + job_id_ + " 5\n";
  }
  static void send(const Relay& relay, const std::string& bytes) {
    EXPECT_EQ(write(relay.in(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static std::string receive_line(const Relay& relay) {
    return read_text(relay.out(), ReadUntil::kLine);
  }
  void expect_echo(const Relay& relay, const std::string& line) {
    send(relay, line);
    EXPECT_EQ(receive_line(relay), line);
  }
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  bool job_ends() const {
    return eventually([this] { return !find_job_directory(job_id_, 5).ok(); });
  }
  // Ends the session as a launcher does: half-close, the last bytes, end of file.
  void end_politely(Relay& relay) {
    relay.input.close_end(1);
    EXPECT_EQ(read_text(relay.out(), ReadUntil::kEnd), "bye\n");
    EXPECT_EQ(wait_exit(relay.process).code, 0);
    EXPECT_TRUE(job_ends());
  }

  LeakGuard guard_;
  const std::string job_id_ = random_job_id();
  const std::string log_ = "/tmp/ivy-relay-test-" + job_id_;
};

TEST_F(RelayTest, StartsAJobAndHalfCloses) {
  Relay relay;
  start_relay(relay, open_line("new"));
  expect_echo(relay, "hello\n");
  end_politely(relay);
  EXPECT_EQ(log(), "half-close\n");
}

TEST_F(RelayTest, ForwardsBytesThatFollowTheFirstLine) {
  Relay relay;
  start_relay(relay, open_line("new") + std::string("\0\x01 frame\n", 9));
  EXPECT_EQ(receive_line(relay), std::string("\0\x01 frame\n", 9));
  end_politely(relay);
}

TEST_F(RelayTest, ReportsAnUnknownJob) {
  Relay relay;
  start_relay(relay, open_line("reattach"));
  EXPECT_EQ(read_text(relay.out(), ReadUntil::kEnd), "\x01ivy:fail no-such-job\n");
  EXPECT_EQ(wait_exit(relay.process).code, kRelayNoSuchJob);
}

TEST_F(RelayTest, RejectsAFirstLineThatIsJunk) {
  for (const std::string& junk :
       {std::string("GET / HTTP/1.1\n"), std::string("\x16\x03\x01\x00\n", 5), std::string("\n"),
        std::string(200, 'x'), std::string(4096, '\0')}) {
    Relay relay;
    start_relay(relay, junk);
    const std::string printed = read_text(relay.out(), ReadUntil::kEnd);
    EXPECT_TRUE(printed.starts_with(std::string(kFailurePrefix) + "the first line is")) << printed;
    EXPECT_EQ(wait_exit(relay.process).code, kRelayFailed);
  }
}

TEST_F(RelayTest, ExitsIfTheInputEndsBeforeALine) {
  Relay relay;
  start_relay(relay, "IVYOPEN 1 new");
  relay.input.close_end(1);
  EXPECT_TRUE(read_text(relay.out(), ReadUntil::kEnd).starts_with(kFailurePrefix));
  EXPECT_EQ(wait_exit(relay.process).code, kRelayFailed);
}

TEST_F(RelayTest, PassesOnWhyAWardenCannotStart) {
  const Result<JobDirectory> taken = make_job_directory(job_id_, 5);
  ASSERT_TRUE(taken.ok());
  Relay relay;
  start_relay(relay, open_line("new"));
  const std::string printed = read_text(relay.out(), ReadUntil::kEnd);
  EXPECT_TRUE(printed.starts_with(std::string(kFailurePrefix) + "this job is already running"))
      << printed;
  EXPECT_EQ(wait_exit(relay.process).code, 0);
  remove_job_directory(*taken);
  close(taken->lock_fd);
}

TEST_F(RelayTest, ReattachesOnASecondRequestForANewJob) {
  Relay first;
  start_relay(first, open_line("new"));
  expect_echo(first, "one\n");
  Relay second;
  start_relay(second, open_line("new"));
  expect_echo(second, "two\n");
  expect_echo(first, "three\n");
  second.input.close_end(1);
  EXPECT_EQ(wait_exit(second.process).code, 0);
  EXPECT_EQ(wait_exit(first.process).code, 0);
  EXPECT_TRUE(job_ends());
}

TEST_F(RelayTest, HangsUpOnDeathWhileTheJobContinues) {
  Relay killed;
  start_relay(killed, open_line("new"));
  expect_echo(killed, "before\n");
  kill(killed.process.pid, SIGKILL);
  EXPECT_EQ(wait_exit(killed.process).signal, SIGKILL);
  EXPECT_TRUE(eventually([this] { return log() == "hang-up\n"; })) << log();
  Relay again;
  start_relay(again, open_line("reattach"));
  expect_echo(again, "after\n");
  end_politely(again);
}

// As when sshd loses its connection: both pipes close at the same time. It must not look like the
// death of a relay.
TEST_F(RelayTest, TreatsADyingSessionAsAHalfClose) {
  Relay relay;
  start_relay(relay, open_line("new"));
  expect_echo(relay, "hello\n");
  relay.output.close_end(0);
  relay.input.close_end(1);
  EXPECT_EQ(wait_exit(relay.process).code, 0);
  EXPECT_TRUE(job_ends());
  EXPECT_EQ(log(), "half-close\n");
}

TEST_F(RelayTest, TreatsABrokenOutputAsAHangUp) {
  Relay relay;
  start_relay(relay, open_line("new"));
  expect_echo(relay, "hello\n");
  relay.output.close_end(0);
  EXPECT_EQ(wait_exit(relay.process).code, 0);
  EXPECT_TRUE(eventually([this] { return log() == "hang-up\n"; })) << log();
  Relay again;
  start_relay(again, open_line("reattach"));
  end_politely(again);
}

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 12345;
  for (char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

TEST_F(RelayTest, CopiesMegabytesInBothDirectionsWithoutDelay) {
  Relay relay;
  start_relay(relay, open_line("new"));
  expect_echo(relay, "ready\n");
  const std::string sent = pattern(2u << 20);
  std::string received;
  std::array<char, 65536> buffer;
  fcntl(relay.in(), F_SETFL, O_NONBLOCK);
  std::size_t at = 0;
  while (received.size() < sent.size()) {
    std::array<pollfd, 2> fds = {pollfd{at < sent.size() ? relay.in() : -1, POLLOUT, 0},
                                 pollfd{relay.out(), POLLIN, 0}};
    ASSERT_GT(poll(fds.data(), fds.size(), 20'000), 0);
    if (fds[0].revents != 0) {
      const ssize_t count = write(relay.in(), sent.data() + at, sent.size() - at);
      if (count > 0) at += static_cast<std::size_t>(count);
    }
    if (fds[1].revents == 0) continue;
    const ssize_t count = read(relay.out(), buffer.data(), buffer.size());
    ASSERT_GT(count, 0);
    received.append(buffer.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(received, sent);
  end_politely(relay);
}

// Nothing reads the output: the writer blocks after a bounded number of bytes, and none is lost.
TEST_F(RelayTest, AppliesBackpressureWithoutLoss) {
  Relay relay;
  start_relay(relay, open_line("new"));
  expect_echo(relay, "ready\n");
  const std::string sent = pattern(16u << 20);
  fcntl(relay.in(), F_SETFL, O_NONBLOCK);
  std::size_t at = 0;
  pollfd waiting{relay.in(), POLLOUT, 0};
  while (at < sent.size() && poll(&waiting, 1, 500) > 0) {
    const ssize_t count = write(relay.in(), sent.data() + at, sent.size() - at);
    if (count > 0) at += static_cast<std::size_t>(count);
  }
  EXPECT_GT(at, 64u << 10);
  EXPECT_LT(at, 4u << 20);
  std::string received;
  std::array<char, 65536> buffer;
  while (received.size() < at) {
    pollfd readable{relay.out(), POLLIN, 0};
    ASSERT_GT(poll(&readable, 1, 20'000), 0);
    const ssize_t count = read(relay.out(), buffer.data(), buffer.size());
    ASSERT_GT(count, 0);
    received.append(buffer.data(), static_cast<std::size_t>(count));
  }
  EXPECT_TRUE(received == sent.substr(0, at));
  end_politely(relay);
}

TEST(OpenLineTest, IsParsed) {
  const std::string job(32, 'f');
  const auto opened = parse_open_line("IVYOPEN 1 new " + job + " 4095");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->verb, OpenVerb::kNew);
  EXPECT_EQ(opened->job_id, job);
  EXPECT_EQ(opened->host, 4095u);
  EXPECT_EQ(parse_open_line("IVYOPEN 1 reattach " + job + " 0")->verb, OpenVerb::kReattach);
}

TEST(OpenLineTest, IsRejectedWhenWrong) {
  const std::string job(32, 'f');
  for (const std::string& line :
       {std::string(), "IVYOPEN 2 new " + job + " 0", "IVYOPEN 1 old " + job + " 0",
        "IVYOPEN 1 new " + job, "IVYOPEN 1 new " + job + " ", "IVYOPEN 1 new " + job + " x",
        "IVYOPEN 1 new " + job + " 1 ", "IVYOPEN 1 new " + job + "1 1",
        "IVYOPEN 1 new " + job + " 99999999999", "IVYOPEN 1 new ../" + job + " 0"}) {
    EXPECT_FALSE(parse_open_line(line).ok()) << line;
  }
}

}  // namespace
}  // namespace ivy::test
