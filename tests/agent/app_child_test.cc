// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/app_child.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "proto/contract/env.h"

namespace ivy {
namespace {

class AppChildTest : public testing::Test {
 protected:
  AppChildTest() { std::filesystem::create_directories(directory_); }
  ~AppChildTest() override { std::filesystem::remove_all(directory_); }

  // Runs a shell command, which starts by writing its pid to a file, until it exits.
  AppChild run(const std::string& command) {
    AppServer server;
    server.set_role("server");
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"),
                                    "echo $$ > " + directory_ + "/pid; " + command})
      server.add_arguments(word);
    AppChild child(server, directory_);
    EXPECT_TRUE(child.start(environment_of(environ)));
    for (int tries = 0; tries < 2000 && !child.has_ended(); ++tries) {
      child.collect();
      usleep(5000);
    }
    EXPECT_TRUE(child.has_ended());
    std::ifstream(directory_ + "/pid") >> leader_;
    EXPECT_GT(leader_, 1);
    return child;
  }

  const std::string directory_ = testing::TempDir() + "app_child_test." + std::to_string(getpid());
  pid_t leader_ = 0;
};

TEST_F(AppChildTest, KeepsThePidUntilItsGroupWasChecked) {
  AppChild child = run("exit 7");
  EXPECT_EQ(child.exit_code(), 7);
  EXPECT_EQ(kill(leader_, 0), 0) << "its pid may already belong to another process";
  child.kill_group(SIGTERM);
  EXPECT_FALSE(child.reap());
  EXPECT_NE(kill(leader_, 0), 0);
  EXPECT_FALSE(child.reap());
  child.kill_group(SIGTERM);
}

TEST_F(AppChildTest, KillsProcessesThatOutliveTheGroupLeader) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  AppChild child = run("sleep 600 & exit 0");
  EXPECT_TRUE(child.reap());
  child.kill_group(SIGKILL);
  bool has_group = true;
  for (int tries = 0; tries < 2000 && has_group; ++tries) {
    usleep(5000);
    has_group = child.reap();
    waitpid(-1, nullptr, WNOHANG);  // The remaining process is a child of this one.
  }
  EXPECT_FALSE(has_group);
}

TEST_F(AppChildTest, ReportsTheSignalThatKilledIt) {
  const AppChild child = run("kill -9 $$");
  EXPECT_EQ(child.signal(), SIGKILL);
  EXPECT_EQ(child.exit_code(), 128 + SIGKILL);
}

}  // namespace
}  // namespace ivy
