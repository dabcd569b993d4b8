// SPDX-License-Identifier: Apache-2.0
// Links through a user's command. The command is a script that starts a shell with another home.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "launcher/links/choice/transport.h"
#include "launcher/links/transport_context.h"
#include "launcher/streams/child_process.h"
#include "tests/launcher/link_probe.h"
#include "tests/launcher/ssh_test_host.h"

namespace ivy {
namespace {

const std::string kJob(32, 'b');
const std::string kOpened = "opened: IVYOPEN 1 new " + kJob + " 5\n";

class ExecLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    // As in ivyrun: a write to a command that has exited must fail instead of raising a signal.
    std::signal(SIGPIPE, SIG_IGN);
    remote_.make_bundle(kEchoNode);
    setenv("IVY_TEST_HOME", remote_.home().c_str(), 1);
    options_.transport = TransportChoice::kExec;
    host_.name = "c1";
  }
  void TearDown() override {
    link_.reset();
    unsetenv("IVY_TEST_HOME");
    EXPECT_TRUE(run_until(loop_, has_no_children)) << "a command was not reaped";
  }
  void start(LinkProbe& probe) {
    context_ =
        std::make_shared<TransportContext>(loop_, options_, NodeProgram{remote_.node_binary()});
    link_ = make_link(context_, host_, probe, 0);
    link_->open(OpenRequest{kJob, 5, false});
    EXPECT_FALSE(probe.up || probe.down) << "a callback was called from inside open()";
  }
  // Opens a link and waits until it is up or down. In `script`, "$@" is the shell to start.
  void open(LinkProbe& probe, const std::string& script) {
    options_.exec_command = {"sh", "-c", "export HOME=$IVY_TEST_HOME; " + script, "{host}"};
    open(probe);
  }
  void open(LinkProbe& probe) {
    start(probe);
    EXPECT_TRUE(run_until(loop_, [&] { return probe.up || probe.down; })) << probe.event_text();
  }
  void expect_up(LinkProbe& probe) {
    ASSERT_TRUE(probe.up.has_value()) << probe.event_text();
    ASSERT_TRUE(run_until(loop_, [&] { return probe.bytes.size() >= kOpened.size(); }))
        << probe.event_text();
    EXPECT_EQ(probe.bytes, kOpened);
  }
  void expect_down(const LinkProbe& probe, LinkFailure failure, const std::string& message,
                   const std::string& fix) {
    ASSERT_TRUE(probe.down.has_value()) << probe.event_text();
    EXPECT_FALSE(probe.up.has_value());
    EXPECT_EQ(probe.down->failure, failure) << probe.event_text();
    EXPECT_NE(probe.down->message.find(message), std::string::npos) << probe.event_text();
    EXPECT_NE(probe.down->fix.find(fix), std::string::npos) << probe.event_text();
  }
  // Sends bytes of every value, which come back unchanged.
  void expect_echo(LinkProbe& probe, std::size_t count) {
    probe.bytes.clear();
    std::string sent(count, '\0');
    for (std::size_t i = 0; i < sent.size(); ++i)
      sent[i] = static_cast<char>(i * 2654435761u >> 13);
    link_->write(sent);
    ASSERT_TRUE(run_until(loop_, [&] { return probe.bytes.size() >= sent.size() || probe.down; }))
        << probe.event_text();
    EXPECT_TRUE(probe.bytes == sent);
  }

  SshTestHost remote_;  // For its directories; its sshd is not started.
  Options options_;
  Host host_;
  boost::asio::io_context loop_;
  std::shared_ptr<TransportContext> context_;
  std::unique_ptr<HostLink> link_;
};

TEST_F(ExecLinkTest, MovesBytesThroughTheCommand) {
  LinkProbe probe;
  open(probe, "test \"$0\" = c1 && exec \"$@\"");
  expect_up(probe);
  EXPECT_EQ(transport_name(probe.up->transport), "exec");
  EXPECT_TRUE(probe.up->own_command.ends_with(" c1 /bin/sh")) << probe.up->own_command;
  EXPECT_EQ(probe.up->peer_address, "");
  expect_echo(probe, 300'000);
}

TEST_F(ExecLinkTest, UsesTheInstalledCopyTheSecondTime) {
  LinkProbe first, second;
  open(first, "exec \"$@\"");
  expect_up(first);
  EXPECT_TRUE(first.printed("sending ivy-node")) << first.event_text();
  link_.reset();
  open(second, "exec \"$@\"");
  expect_up(second);
  EXPECT_FALSE(second.printed("sending ivy-node")) << second.event_text();
}

TEST_F(ExecLinkTest, SkipsNoiseBeforeTheFrames) {
  LinkProbe probe;
  open(probe, "echo Welcome; echo 'Defaulted container \"a\"' >&2; exec \"$@\"");
  expect_up(probe);
}

// As ssh does.
TEST_F(ExecLinkTest, AcceptsACommandThatJoinsItsArguments) {
  LinkProbe probe;
  open(probe, "exec sh -c \"$*\"");
  expect_up(probe);
}

// As `machinectl shell` does.
TEST_F(ExecLinkTest, MovesBytesThroughATerminal) {
  LinkProbe probe;
  open(probe, "exec script -qec \"$1\" /dev/null");
  ASSERT_TRUE(probe.up.has_value()) << probe.event_text();
  ASSERT_TRUE(run_until(loop_, [&] { return probe.bytes.ends_with(kOpened); }))
      << probe.event_text();
  // Less than a terminal's buffer: script(1) does not read while it writes.
  expect_echo(probe, 2'000);
}

TEST_F(ExecLinkTest, NamesAMissingCommand) {
  options_.exec_command = {"no-such-command", "{host}"};
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kBootstrap, "start no-such-command: No such file",
              "no-such-command runs on this machine: install it");
}

TEST_F(ExecLinkTest, ReportsWhyTheCommandExited) {
  LinkProbe probe;
  open(probe, "echo \"Error: no such container: $0\" >&2; exit 3");
  expect_down(probe, LinkFailure::kUnreachable,
              "sh exited before ivy-node ran (exit 3); it printed: Error: no such container: c1",
              "this must print 'started': echo echo started | sh -c ");
}

TEST_F(ExecLinkTest, NamesACommandThatDropsStandardInput) {
  LinkProbe probe;
  open(probe, "exec \"$@\" < /dev/null");
  expect_down(probe, LinkFailure::kUnreachable, "sh exited before ivy-node ran (exit 0)",
              "the command must pass its standard input on, as `kubectl exec -i` does; this must "
              "print 'started'");
}

TEST_F(ExecLinkTest, NamesACommandThatOnlyPrints) {
  LinkProbe probe;
  open(probe, "exec yes 'not a shell'");
  expect_down(probe, LinkFailure::kBootstrap,
              "its shell does not start ivy-node, but keeps printing; the last line: not a shell",
              "the command that reaches c1");
}

TEST_F(ExecLinkTest, ShowsWhatASilentCommandPrinted) {
  LinkProbe probe;
  options_.exec_command = {"sh", "-c", "printf Password:; exec sleep 60", "{host}"};
  start(probe);
  const std::string step = "sh: no shell has started there yet; it printed: Password:";
  EXPECT_TRUE(run_until(loop_, [&] { return probe.printed(step); })) << probe.event_text();
}

TEST_F(ExecLinkTest, ReportsABrokenConnection) {
  LinkProbe probe;
  open(probe, "echo $$ > $HOME/pid; echo 'a warning' >&2; exec \"$@\"");
  expect_up(probe);
  ASSERT_EQ(kill(std::stoi(read_file(remote_.home() / "pid")), SIGKILL), 0);
  ASSERT_TRUE(run_until(loop_, [&] { return probe.down.has_value(); })) << probe.event_text();
  EXPECT_EQ(probe.down->failure, LinkFailure::kBroken);
  EXPECT_EQ(probe.down->message.line(), "sh closed the connection (SIGKILL)");
  EXPECT_EQ(probe.down->fix, "");
}

// As when ivyrun exits: the loop, whose timer would terminate the command, no longer runs.
TEST_F(ExecLinkTest, TerminatesAStuckCommandWithoutTheLoop) {
  LinkProbe probe;
  options_.exec_command = {"sh", "-c", "echo $$ > $IVY_TEST_HOME/pid; exec sleep 60", "{host}"};
  start(probe);
  const auto pid_text = [&] { return read_file(remote_.home() / "pid"); };
  ASSERT_TRUE(run_until(loop_, [&] { return pid_text().ends_with('\n'); })) << probe.event_text();
  const auto pid = static_cast<id_t>(std::stoi(pid_text()));
  link_.reset();
  EXPECT_TRUE(ChildProcess::terminate_connections());
  siginfo_t end{};
  ASSERT_EQ(waitid(P_PID, pid, &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_code, CLD_KILLED);
  EXPECT_EQ(end.si_status, SIGTERM);
  ASSERT_TRUE(run_until(loop_, has_no_children));
  EXPECT_FALSE(ChildProcess::terminate_connections());
}

TEST_F(ExecLinkTest, KillsACommandThatIgnoresTermWithItsGroup) {
  LinkProbe probe;
  options_.exec_command = {"sh", "-c",
                           "trap '' TERM; sleep 60 & echo $! > $IVY_TEST_HOME/pid; wait; sleep 60",
                           "{host}"};
  start(probe);
  const auto pid_text = [&] { return read_file(remote_.home() / "pid"); };
  ASSERT_TRUE(run_until(loop_, [&] { return pid_text().ends_with('\n'); })) << probe.event_text();
  const pid_t child = std::stoi(pid_text());
  link_.reset();
  EXPECT_TRUE(ChildProcess::terminate_connections());
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(ChildProcess::any_runs());
  EXPECT_TRUE(ChildProcess::kill_connections());
  ASSERT_TRUE(run_until(loop_, has_no_children));
  EXPECT_FALSE(ChildProcess::kill_connections());
  // The shell's own child now belongs to another process, which may not have reaped it yet.
  EXPECT_TRUE(run_until(loop_, [&] {
    const std::string stat = read_file("/proc/" + std::to_string(child) + "/stat");
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  }));
}

TEST_F(ExecLinkTest, InvokesNoCallbackAfterClose) {
  LinkProbe probe;
  options_.exec_command = {"sleep", "60", "{host}"};
  start(probe);
  ASSERT_TRUE(run_until(loop_, [&] { return probe.printed("sleep: connecting"); }))
      << probe.event_text();
  link_.reset();
  context_.reset();
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(probe.up || probe.down) << probe.event_text();
}

}  // namespace
}  // namespace ivy
