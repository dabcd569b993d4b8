// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/local_link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "launcher/links/warden_copy.h"
#include "proto/os/process_title.h"
#include "tests/launcher/link_probe.h"

namespace ivy {
namespace {

// The warden is a shell script of the test, in a directory that is removed afterwards.
class LocalLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    // As ivyrun does: a relay may have exited when it is written to.
    std::signal(SIGPIPE, SIG_IGN);
    std::string name = testing::TempDir() + "local-link-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    EXPECT_TRUE(run_until(loop_, has_no_children)) << "the warden was not reaped";
    std::filesystem::remove_all(directory_);
  }

  std::string script(const std::string& body) {
    const std::string path = directory_ / "ivy-node";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  std::unique_ptr<LocalLink> open(const std::string& program) {
    auto link = std::make_unique<LocalLink>(loop_, program, probe_);
    link->open(OpenRequest{std::string(32, 'a'), 7, false});
    EXPECT_FALSE(probe_.up || probe_.down) << "a handler was called from inside open()";
    return link;
  }

  std::filesystem::path directory_;
  boost::asio::io_context loop_;
  LinkProbe probe_;
};

TEST_F(LocalLinkTest, CarriesBytesInBothDirections) {
  const auto link = open(script("exec cat <&3 >&3"));
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.up.has_value(); }));
  EXPECT_EQ(probe_.up->transport, Transport::kLocal);
  EXPECT_EQ(probe_.up->peer_address, "");
  const std::string sent(3 << 20, 'x');
  link->write(sent);
  ASSERT_TRUE(
      run_until(loop_, [&] { return probe_.bytes.size() == sent.size() && probe_.drained > 0; }));
  EXPECT_EQ(probe_.bytes, sent);
  EXPECT_EQ(probe_.drained, 1);
}

TEST_F(LocalLinkTest, PassesTheWardenItsOrderAndACleanEnvironment) {
  std::signal(SIGUSR2, SIG_IGN);
  const auto link = open(
      script("echo \"$*\" >&3; x=$(for f in 0 1 2; do readlink /proc/$$/fd/$f; done); "
             "echo \"$x\" >&3; "
             "ls /proc/self/fd | tr '\\n' ' ' >&3; grep -E 'SigBlk|SigIgn' /proc/self/status >&3"));
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); })) << probe_.event_text();
  std::signal(SIGUSR2, SIG_DFL);
  EXPECT_NE(probe_.bytes.find("warden --job " + std::string(32, 'a') +
                              " --host 7 --transport-fd 3 --transport local\n"
                              "/dev/null\n/dev/null\n/dev/null\n0 1 2 3 4 "),
            std::string::npos)
      << probe_.bytes;
  EXPECT_NE(probe_.bytes.find("SigBlk:\t0000000000000000"), std::string::npos) << probe_.bytes;
  const std::size_t ignored = probe_.bytes.find("SigIgn:\t");
  ASSERT_NE(ignored, std::string::npos) << probe_.bytes;
  // Signals 32 and 33 belong to the C library, which does not let a program set them.
  EXPECT_EQ(std::stoull(probe_.bytes.substr(ignored + 8), nullptr, 16) & ~(3ull << 31), 0u);
}

// Reports the arguments, descriptors and signal state of the copy that continues as the warden.
int tell_in_copy(int argc, char** argv) {
  std::string reported = std::to_string(getpid()) + "|";
  for (int i = 1; i < argc; ++i) reported += std::string(argv[i]) + (i + 1 < argc ? " " : "|");
  std::string title;
  std::getline(std::ifstream("/proc/self/cmdline"), title, '\0');
  reported += title + "|";
  for (int fd = 4; fd < 64; ++fd)
    if (fcntl(fd, F_GETFD) != -1) reported += "descriptor " + std::to_string(fd);
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  struct sigaction action {};
  sigaction(SIGUSR2, nullptr, &action);
  reported += sigismember(&blocked, SIGTERM) || action.sa_handler != SIG_DFL ? "|dirty" : "|clean";
  reported += getsid(0) == getpid() ? "|own session" : "|our session";
  reported += getenv("HOME") == nullptr ? "|no home" : "|" + std::string(getenv("HOME"));
  [[maybe_unused]] const ssize_t written = write(3, reported.data(), reported.size());
  return 0;
}

TEST_F(LocalLinkTest, ForksAWardenOfThisProgram) {
  std::signal(SIGUSR2, SIG_IGN);
  setenv("HOME", "/a/home", 1);
  char* words_of_ours[] = {program_invocation_name, nullptr};
  reserve_title_buffer(words_of_ours);
  NodeProgram node((directory_ / "nothing").string());
  node.copy = WardenCopy::start({node.path, std::string(32, 'a'), 7}, tell_in_copy);
  ASSERT_NE(node.copy, nullptr);
  EXPECT_FALSE(node.copy->take({node.path, std::string(32, 'a'), 8}))
      << "the copy is for another host";
  LocalLink link(loop_, node, probe_);
  link.open(OpenRequest{std::string(32, 'a'), 7, false});
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); })) << probe_.event_text();
  std::signal(SIGUSR2, SIG_DFL);
  const std::string words =
      "warden --job " + std::string(32, 'a') + " --host 7 --transport-fd 3 --transport local";
  std::vector<std::string> reported;
  std::istringstream text(probe_.bytes);
  for (std::string part; std::getline(text, part, '|');) reported.push_back(part);
  ASSERT_EQ(reported.size(), 7u) << probe_.bytes;
  EXPECT_NE(reported[0], std::to_string(getpid()));
  EXPECT_EQ(reported[1], words);
  // The process list shows the copy as the program, as far as there is room for its arguments.
  const std::string shown = (directory_ / "nothing").string() + " " + words;
  EXPECT_TRUE(!reported[2].empty() && shown.starts_with(reported[2])) << reported[2];
  EXPECT_EQ(reported[3], "");  // None of the launcher's descriptors.
  EXPECT_EQ(reported[4], "clean");
  EXPECT_EQ(reported[5], "own session");
  EXPECT_EQ(reported[6], "/a/home");  // The environment is still readable after the title was set.
}

int stays_until_hung_up(int, char**) {
  char byte = 0;
  return read(3, &byte, 1) == 0 ? 0 : 1;
}

TEST_F(LocalLinkTest, ReapsAnUnusedWardenCopy) {
  auto copy = WardenCopy::start({"nothing", std::string(32, 'a'), 7}, stays_until_hung_up, true);
  ASSERT_NE(copy, nullptr);
  siginfo_t child{};
  EXPECT_EQ(waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT), 0);
  copy.reset();
  EXPECT_EQ(waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT), -1) << "a child is left";
  EXPECT_EQ(errno, ECHILD);
  int is_subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
  EXPECT_EQ(is_subreaper, 0);
}

TEST_F(LocalLinkTest, IsNotASubreaperWithoutAWardenCopy) {
  // In a child of this test, because it gives up the right to start processes.
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{};
    if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(3);
    const auto copy = WardenCopy::start({"nothing", std::string(32, 'a'), 7}, tell_in_copy, true);
    int is_subreaper = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
    _exit(copy == nullptr && is_subreaper == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(LocalLinkTest, ReportsEndOfFileAsBroken) {
  const auto link = open(script("exit 9"));
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kBroken);
}

TEST_F(LocalLinkTest, NamesAMissingNodeBinary) {
  const auto link = open(directory_ / "nothing");
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kBootstrap);
  EXPECT_NE(probe_.down->message.find("nothing: No such file"), std::string::npos)
      << probe_.down->message;
  EXPECT_NE(probe_.down->fix, "");
}

TEST_F(LocalLinkTest, ReportsTheFailureLineOfTheWarden) {
  const auto link = open(script("printf '\\001ivy:fail /tmp is full\\n' >&3"));
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kBootstrap);
  EXPECT_NE(probe_.down->message.find("/tmp is full"), std::string::npos);
}

// Another launcher takes over a job whose supervisor runs on this host: through a relay, as on any
// host.
TEST_F(LocalLinkTest, ReattachesThroughARelay) {
  LocalLink link(loop_, script("echo \"$*\"; exec cat"), probe_);
  link.open(OpenRequest{std::string(32, 'a'), 7, true});
  const std::string wanted = "relay\nIVYOPEN 1 reattach " + std::string(32, 'a') + " 7\n";
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.bytes.size() >= wanted.size(); }))
      << probe_.event_text();
  EXPECT_TRUE(probe_.up.has_value());
  EXPECT_EQ(probe_.bytes, wanted);
}

TEST_F(LocalLinkTest, ReportsAMissingJobWhenReattaching) {
  LocalLink link(loop_, script("read line; printf '\\001ivy:fail no-such-job\\n'"), probe_);
  link.open(OpenRequest{std::string(32, 'a'), 0, true});
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kNoSuchJob);
}

// The state of the job is unknown: the caller must not treat it as finished.
TEST_F(LocalLinkTest, TreatsARelayThatExitsSilentlyAsBroken) {
  LocalLink link(loop_, script("exit 0"), probe_);
  link.open(OpenRequest{std::string(32, 'a'), 0, true});
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kBroken);
}

#ifdef IVY_TEST_NODE
TEST_F(LocalLinkTest, ReportsAMissingJobWithTheRealRelay) {
  LocalLink link(loop_, std::string(IVY_TEST_NODE), probe_);
  link.open(OpenRequest{std::string(32, 'a'), 0, true});
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); }));
  EXPECT_EQ(probe_.down->failure, LinkFailure::kNoSuchJob) << probe_.down->message;
}
#endif

TEST_F(LocalLinkTest, ClosesTheWardensInputWithoutCallbacks) {
  const std::string mark = directory_ / "ended";
  auto link = open(script("cat <&3 >/dev/null; : > " + mark));
  ASSERT_TRUE(run_until(loop_, [&] { return probe_.up.has_value(); }));
  link.reset();
  ASSERT_TRUE(run_until(loop_, [&] { return std::filesystem::exists(mark); }));
  EXPECT_FALSE(probe_.down.has_value());
}

}  // namespace
}  // namespace ivy
