// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/exit_code.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ivy {
namespace {

TEST(ExitCodeTest, KeepsEveryExitCode) {
  for (int code = 0; code < 256; ++code) {
    const ExitStatus status = exit_status_from_wait(CLD_EXITED, code);
    EXPECT_EQ(status.code, code);
    EXPECT_EQ(status.signal, 0);
    EXPECT_EQ(status.shell_code(), code);
    EXPECT_EQ(status.is_success(), code == 0);
    EXPECT_EQ(describe(status), "exit " + std::to_string(code));
  }
}

TEST(ExitCodeTest, Adds128ToSignals) {
  for (const int how : {CLD_KILLED, CLD_DUMPED}) {
    for (int signal = 1; signal <= 64; ++signal) {
      const ExitStatus status = exit_status_from_wait(how, signal);
      EXPECT_EQ(status.signal, signal);
      EXPECT_EQ(status.shell_code(), 128 + signal);
      EXPECT_FALSE(status.is_success());
    }
  }
}

TEST(ExitCodeTest, SignalsHaveNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(signal_name(42), "signal 42");
  EXPECT_EQ(describe(ExitStatus{.code = 0, .signal = SIGBUS}), "SIGBUS");
}

TEST(ExitCodeTest, ParsesSignalNamesAndNumbers) {
  for (const char* text : {"USR1", "SIGUSR1", "usr1", "sigusr1", "10"})
    EXPECT_EQ(signal_number(text), SIGUSR1) << text;
  for (const char* text : {"", "SIG", "NOPE", "0", "65", "-1", "1O"})
    EXPECT_EQ(signal_number(text), 0) << text;
  for (int signal = 1; signal < 32; ++signal) EXPECT_EQ(signal_number(signal_name(signal)), signal);
}

}  // namespace
}  // namespace ivy
