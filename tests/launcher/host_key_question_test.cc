// SPDX-License-Identifier: Apache-2.0
// The question about an unknown host key, on a real pseudo terminal.
#include "launcher/links/ssh/host_key_question.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ivy {
namespace {

constexpr int kTrusted = 10;
constexpr int kNotTrusted = 11;
constexpr int kCannotAsk = 12;

// In the child: prompts, and exits with the answer.
[[noreturn]] void ask_and_exit() {
  if (!HostKeyQuestion::can_prompt()) _exit(kCannotAsk);
  boost::asio::io_context loop;
  const auto question = std::make_shared<HostKeyQuestion>(loop);
  question->prompt({"node1", "10.0.0.1", "ED25519", "SHA256:abc"},
                   [](bool trusted) { _exit(trusted ? kTrusted : kNotTrusted); });
  loop.run();
  _exit(1);
}

class HostKeyQuestionTest : public testing::Test {
 protected:
  void SetUp() override {
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    ASSERT_GE(child_, 0);
    if (child_ == 0) ask_and_exit();
  }
  void TearDown() override { close(terminal_); }
  // Reads until the text was shown; returns false if it is not shown within 10 s.
  bool shows(const std::string& text) {
    pollfd ready{terminal_, POLLIN, 0};
    char buffer[512];
    while (shown_.find(text) == std::string::npos) {
      if (poll(&ready, 1, 10'000) != 1) return false;
      const ssize_t count = read(terminal_, buffer, sizeof buffer);
      if (count <= 0) return false;
      shown_.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  }
  void type(const std::string& line) {
    ASSERT_EQ(write(terminal_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  int exit_code() {
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
};

TEST_F(HostKeyQuestionTest, TrustsOnYesAndPromptsAgainOtherwise) {
  ASSERT_TRUE(shows("The authenticity of host 'node1 (10.0.0.1)' can't be established.")) << shown_;
  ASSERT_TRUE(shows("ED25519 key fingerprint is SHA256:abc.")) << shown_;
  ASSERT_TRUE(shows("(yes/no/[fingerprint])? ")) << shown_;
  type("maybe\n");
  ASSERT_TRUE(shows("Please type 'yes', 'no' or the fingerprint: ")) << shown_;
  type("yes\n");
  EXPECT_EQ(exit_code(), kTrusted);
}

TEST_F(HostKeyQuestionTest, DoesNotTrustOnNo) {
  ASSERT_TRUE(shows("[fingerprint])? ")) << shown_;
  type("no\n");
  EXPECT_EQ(exit_code(), kNotTrusted);
}

TEST_F(HostKeyQuestionTest, TrustsOnTheFingerprint) {
  ASSERT_TRUE(shows("[fingerprint])? ")) << shown_;
  type("SHA256:abc\n");
  EXPECT_EQ(exit_code(), kTrusted);
}

TEST_F(HostKeyQuestionTest, DoesNotTrustIfTheTerminalCloses) {
  ASSERT_TRUE(shows("[fingerprint])? ")) << shown_;
  type("\x04");
  EXPECT_EQ(exit_code(), kNotTrusted);
}

}  // namespace
}  // namespace ivy
