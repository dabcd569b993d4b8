// SPDX-License-Identifier: Apache-2.0
// The meaning of exits of MPI processes, as a table.
#include "agent/node/workers/mpi_ranks.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ivy {
namespace {

constexpr std::uint64_t kLater = MpiRanks::kVanishedNs + 1;

struct Case {
  std::vector<const char*> lines;  // Before rank 1 exits.
  bool required;
  ExitStatus status;
  int code;           // -1: that of the status.
  const char* words;  // Of the cause.
};

TEST(MpiRanksTest, ClassifiesExits) {
  const ExitStatus well{};
  const ExitStatus three{.code = 3};
  const ExitStatus killed{.signal = SIGKILL};
  const Case kTable[] = {
      {{}, false, well, -1, ""},
      {{}, true, well, 1, "before MPI_Init: under -B mpi"},
      {{}, true, three, -1, ""},
      {{"joined 0"}, false, well, 1, "before MPI_Init: the other ranks"},
      {{"joined 0"}, false, three, -1, ""},
      {{"joined 1"}, false, well, 1, "before MPI_Finalize"},
      {{"joined 1"}, false, three, -1, ""},
      {{"joined 1"}, false, killed, -1, ""},
      {{"joined 1", "vanished 1"}, false, well, 1, "before MPI_Finalize"},
      {{"joined 1", "left 1"}, true, well, -1, ""},
      {{"joined 1", "left 1", "vanished 1"}, true, well, -1, ""},
      {{"joined 1", "abort 1 7 the end"}, false, killed, 7, "by MPI_Abort(7): the end"},
      {{"joined 1", "abort 1 7 N/A"}, false, ExitStatus{.code = 7}, 7, "by MPI_Abort(7)"},
      {{"joined 1", "abort 1 0 "}, false, well, 1, "by MPI_Abort(0)"},
      {{"joined 1", "abort 1 256 "}, false, killed, 1, "by MPI_Abort(256)"},
      {{"joined 1", "abort 1 -1 "}, false, killed, 255, "by MPI_Abort(-1)"},
  };
  for (const Case& one : kTable) {
    MpiRanks ranks;
    ranks.begin(one.required);
    for (const char* line : one.lines) EXPECT_TRUE(ranks.take(line, 0)) << line;
    const MpiEnd end = ranks.classify(1, one.status);
    const std::string what = one.lines.empty() ? "no line" : one.lines.back();
    EXPECT_EQ(end.code.value_or(-1), one.code) << what;
    EXPECT_NE(end.cause.find(one.words), std::string::npos) << end.cause;
    EXPECT_EQ(end.is_absent, one.lines.empty() && !one.required && one.status.is_success()) << what;
  }
}

TEST(MpiRanksTest, TreatsARankThatLeftItsWorldAsFinished) {
  MpiRanks ranks;
  ranks.begin(false);
  ranks.take("joined 2", 0);
  EXPECT_TRUE(ranks.overdue(kLater).empty());
  ranks.take("vanished 2", 0);
  EXPECT_TRUE(ranks.overdue(1).empty()) << "it may be about to exit";
  EXPECT_EQ(ranks.overdue(kLater), std::vector<std::uint32_t>{2});
  EXPECT_TRUE(ranks.overdue(2 * kLater).empty()) << "reported once";
  EXPECT_EQ(ranks.classify(2, ExitStatus{.signal = SIGKILL}).code, 1);
  ranks.take("abort 3 5 ", 0);
  EXPECT_TRUE(ranks.overdue(1).empty()) << "it may say why";
  EXPECT_EQ(ranks.overdue(MpiRanks::kAbortNs), std::vector<std::uint32_t>{3});
  ranks.begin(false);
  EXPECT_FALSE(ranks.classify(2, {}).code.has_value()) << "another generation";
}

TEST(MpiRanksTest, RejectsOtherLines) {
  MpiRanks ranks;
  for (const char* line : {"", "joined", "joined x", "joined -1", "abort 1", "abort 1 x", "gone 1"})
    EXPECT_FALSE(ranks.take(line, 0)) << line;
  EXPECT_FALSE(ranks.classify(1, {}).code.has_value());
}

}  // namespace
}  // namespace ivy
