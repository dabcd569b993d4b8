// SPDX-License-Identifier: Apache-2.0
// Failures of mpi-exec before it executes a program.
#include "agent/node/roles/mpi_exec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/contract/exit_code.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

int run(const std::vector<std::string>& words) {
  std::vector<char*> argv = exec_array(words);
  return run_mpi_exec(static_cast<int>(words.size()), argv.data());
}

TEST(MpiExec, RejectsWrongArguments) {
  EXPECT_EQ(run({}), kExitUsage);
  EXPECT_EQ(run({"--directory", "/none", "--path", "/none/x", "--", "x"}), kExitUsage);
  EXPECT_EQ(run({"--directory", "/none", "--pmi", "--path", "/none/x", "--"}), kExitUsage);
  EXPECT_EQ(run({"--pmi", "--path", "/none/x", "--", "x"}), kExitUsage);
  EXPECT_EQ(run({"--directory", "/none", "--pmi", "--", "x"}), kExitUsage);
}

TEST(MpiExec, GivesTheReasonOfEachServer) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"--directory", "/none", "--pmi", "--pmix", "--path", "/none/x", "--", "x"}),
            kExitRejected);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("no socket pmi.sock; this host has no socket pmix.sock (Open MPI needs"),
            std::string::npos)
      << printed;
}

TEST(MpiExec, RejectsADirectoryThatIsTooLongForASocket) {
  testing::internal::CaptureStderr();
  const std::string directory = "/none/" + std::string(200, 'x');
  EXPECT_EQ(run({"--directory", directory, "--pmi", "--path", "/none/x", "--", "x"}),
            kExitRejected);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("/pmi.sock is too long for a socket"), std::string::npos) << printed;
}

}  // namespace
}  // namespace ivy
