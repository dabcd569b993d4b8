// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ivy {
namespace {

constexpr std::int64_t kMs = 1'000'000;
const char* const kWatchdog =
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(...)\n";

const char* const kJax =
    "F0511 07:38:29.1 77 client.h:77] Terminating process because the JAX distributed service "
    "detected fatal errors. This most likely indicates that another task died\n";
const char* const kOldJax =
    "F external/xla/client.h:75] Terminating process because the coordinator detected missing "
    "heartbeats. This most likely indicates that another task died\n";

WorkerEnd code(int rank, int value, std::int64_t at_ms) {
  WorkerEnd end;
  end.rank = rank;
  end.host =
      "node" + std::to_string(rank);  // A host for each rank, unless on_one_host() changes it.
  end.status.code = value;
  end.at_ns = at_ms * kMs;
  end.clock_error_ns = kMs;
  return end;
}
WorkerEnd killed(int rank, int signal, std::int64_t at_ms) {
  WorkerEnd end = code(rank, 0, at_ms);
  end.status.signal = signal;
  return end;
}
WorkerEnd out_of_memory(int rank, std::int64_t at_ms) {
  WorkerEnd end = killed(rank, SIGKILL, at_ms);
  end.out_of_memory = true;
  return end;
}
WorkerEnd watchdog(int rank, std::int64_t at_ms) {
  WorkerEnd end = killed(rank, SIGABRT, at_ms);
  end.stderr_tail = kWatchdog;
  return end;
}
// Below a shell, which exits with 128 + SIGABRT.
WorkerEnd watchdog_behind_shell(int rank, std::int64_t at_ms) {
  WorkerEnd end = code(rank, 134, at_ms);
  end.stderr_tail = kWatchdog;
  return end;
}
WorkerEnd saying(WorkerEnd end, const char* text) {
  end.stderr_tail = text;
  return end;
}
WorkerEnd victim(WorkerEnd end) {
  end.after_stop = true;
  return end;
}
WorkerEnd never_ran(int rank, int exit_code) {
  WorkerEnd end = code(rank, exit_code, 5);
  end.exec_failure = "exec: the reason";
  return end;
}
LauncherEnd because(LauncherReason reason, std::int64_t at_ms, int signal = 0) {
  LauncherEnd end;
  end.reason = reason;
  end.at_ns = at_ms * kMs;
  end.signal = signal;
  return end;
}

WorkerEnd on_one_host(WorkerEnd end) {
  end.host = "node1";
  return end;
}

struct Row {
  const char* name;
  std::vector<WorkerEnd> ends;
  int exit_code;
  int first_rank;
};

WorkerEnd tolerated(WorkerEnd end) {
  end.tolerated = true;
  return end;
}

TEST(VerdictTest, SucceedsWithoutRanks) {
  const Outcome outcome =
      judge({code(0, 0, 90), tolerated(killed(1, SIGKILL, 10)), code(2, 0, 91)}, {});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(outcome.first);
  EXPECT_EQ(outcome.lost, (std::vector<std::size_t>{1}));
}

TEST(VerdictTest, CountsTheFirstFailureEvenOfATolerableRank) {
  const Outcome outcome =
      judge({code(0, 5, 90), tolerated(killed(1, SIGKILL, 10)), code(2, 0, 91)}, {});
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_EQ(outcome.first, 1u);
  EXPECT_EQ(outcome.candidates, (std::vector<std::size_t>{0}));
}

TEST(VerdictTest, DoesNotBlameATolerableFailureForAnInterrupt) {
  LauncherEnd interrupted;
  interrupted.reason = LauncherReason::kInterrupted;
  interrupted.signal = SIGINT;
  interrupted.at_ns = 100 * kMs;
  const Outcome outcome =
      judge({victim(killed(0, SIGINT, 101)), tolerated(code(1, 3, 10))}, interrupted);
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_FALSE(outcome.first);
}

TEST(VerdictTest, NamesTheFirstCauseAmongWorkers) {
  const Row rows[] = {
      {"all well", {code(0, 0, 1), code(1, 0, 2)}, 0, -1},
      {"one code", {code(0, 0, 1), code(1, 7, 2)}, 7, 1},
      {"one signal", {killed(0, SIGSEGV, 1)}, 139, 0},
      {"earlier code", {code(0, 3, 100), code(1, 4, 50)}, 4, 1},
      {"code long before signal", {code(0, 3, 10), killed(1, SIGSEGV, 50)}, 3, 0},
      {"signal within the error", {code(0, 3, 10), killed(1, SIGSEGV, 12)}, 139, 1},
      {"signal just outside the error", {code(0, 3, 10), killed(1, SIGSEGV, 13)}, 3, 0},
      {"memory within the error", {killed(0, SIGSEGV, 10), out_of_memory(1, 11)}, 137, 1},
      {"memory over code", {code(0, 1, 10), out_of_memory(1, 12)}, 137, 1},
      {"one host's order holds within the error",
       {on_one_host(code(0, 3, 10)), on_one_host(killed(1, SIGABRT, 11))},
       3,
       0},
      {"one host's order holds for memory too",
       {on_one_host(code(0, 3, 10)), on_one_host(out_of_memory(1, 11))},
       3,
       0},
      {"one host's order holds beside another host",
       {code(0, 7, 100), on_one_host(code(1, 5, 101)), on_one_host(killed(2, SIGSEGV, 101))},
       7,
       0},
      {"only the first exit of a host is more severe",
       {code(0, 7, 100), on_one_host(killed(1, SIGSEGV, 101)), on_one_host(out_of_memory(2, 101))},
       139,
       1},
      {"two codes within the error", {code(1, 5, 11), code(0, 6, 10)}, 6, 0},
      {"same time, lower rank", {code(1, 5, 10), code(0, 6, 10)}, 6, 0},
      {"watchdog loses to a later code", {watchdog(0, 10), code(1, 9, 500)}, 9, 1},
      {"watchdog loses to a later signal", {watchdog(0, 10), killed(1, SIGKILL, 500)}, 137, 1},
      {"only watchdogs", {watchdog(1, 20), watchdog(0, 30)}, 134, 1},
      {"watchdog behind a shell", {watchdog_behind_shell(0, 10), code(1, 9, 500)}, 9, 1},
      {"134 without watchdog text", {code(0, 134, 10), code(1, 9, 500)}, 134, 0},
      {"watchdog's words but another code",
       {saying(code(0, 3, 10), kWatchdog), code(1, 9, 500)},
       3,
       0},
      {"JAX's abort", {saying(killed(0, SIGABRT, 10), kJax), code(1, 9, 500)}, 9, 1},
      {"JAX's quiet end", {saying(code(0, 1, 10), kJax), code(1, 9, 500)}, 9, 1},
      {"an older JAX's abort", {saying(killed(0, SIGABRT, 10), kOldJax), code(1, 9, 500)}, 9, 1},
      {"JAX's words but another code", {saying(code(0, 7, 10), kJax), code(1, 9, 500)}, 7, 0},
      {"abort without watchdog text", {killed(0, SIGABRT, 10), code(1, 1, 500)}, 134, 0},
      {"victims after", {code(0, 3, 10), victim(killed(1, SIGTERM, 11))}, 3, 0},
      {"victim's clock is early", {victim(killed(1, SIGKILL, 5)), code(0, 3, 10)}, 3, 0},
      {"victim out of memory", {victim(out_of_memory(1, 10)), code(0, 3, 10)}, 3, 0},
      {"only victims", {victim(killed(1, SIGTERM, 9)), victim(killed(0, SIGTERM, 8))}, 143, 0},
  };
  for (const Row& row : rows) {
    const Outcome outcome = judge(row.ends, LauncherEnd{});
    EXPECT_EQ(outcome.exit_code, row.exit_code) << row.name;
    ASSERT_EQ(outcome.first.has_value(), row.first_rank >= 0) << row.name;
    if (outcome.first) {
      EXPECT_EQ(row.ends[*outcome.first].rank, row.first_rank) << row.name;
    }
    EXPECT_EQ(outcome.origin_is_worker, row.first_rank >= 0) << row.name;
    EXPECT_EQ(outcome.raise_signal, 0) << row.name;
  }
}

TEST(VerdictTest, CountsEveryExitOnce) {
  const std::vector<WorkerEnd> ends = {code(0, 0, 1),
                                       code(1, 3, 30),
                                       code(2, 4, 20),
                                       code(3, 5, 10),
                                       victim(killed(4, SIGTERM, 40)),
                                       victim(code(5, 0, 41))};
  const Outcome outcome = judge(ends, LauncherEnd{});
  EXPECT_EQ(outcome.first, 3u);
  EXPECT_EQ(outcome.candidates, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(outcome.victims, (std::vector<std::size_t>{4}));
  EXPECT_EQ(outcome.succeeded, (std::vector<std::size_t>{0, 5}));
}

TEST(VerdictTest, PassesEveryExitCodeOn) {
  for (int value = 1; value <= 255; ++value)
    EXPECT_EQ(judge({code(0, value, 1)}, LauncherEnd{}).exit_code, value);
  for (int signal = 1; signal <= 64; ++signal)
    EXPECT_EQ(judge({killed(0, signal, 1)}, LauncherEnd{}).exit_code, 128 + signal);
}

TEST(VerdictTest, GivesAProgramThatNeverRanAnExitCodeOfIvyrun) {
  for (const int exit_code : {kExitNotFound, kExitNotExecutable}) {
    const Outcome outcome = judge({never_ran(0, exit_code)}, LauncherEnd{});
    EXPECT_EQ(outcome.exit_code, exit_code);
    EXPECT_FALSE(outcome.origin_is_worker) << exit_code;
    EXPECT_TRUE(outcome.first.has_value()) << exit_code;
  }
}

struct LauncherRow {
  LauncherReason reason;
  int exit_code;
};

TEST(VerdictTest, ReturnsTheLaunchersCodeIfNoRankFailedFirst) {
  const LauncherRow rows[] = {
      {LauncherReason::kTimeout, 124},        {LauncherReason::kHostLost, 121},
      {LauncherReason::kSupervisorLost, 121}, {LauncherReason::kOutputClosed, 141},
      {LauncherReason::kHostsNotUp, 120},     {LauncherReason::kRejected, 122},
      {LauncherReason::kInternal, 125},       {LauncherReason::kPreempted, 75},
  };
  for (const LauncherRow& row : rows) {
    const Outcome outcome = judge({victim(killed(0, SIGTERM, 20))}, because(row.reason, 10));
    EXPECT_EQ(outcome.exit_code, row.exit_code);
    EXPECT_FALSE(outcome.origin_is_worker);
    EXPECT_FALSE(outcome.first.has_value());
    EXPECT_EQ(outcome.victims.size(), 1u);
    // A worker that failed long before is the cause; one that failed afterwards is not.
    EXPECT_EQ(judge({code(0, 9, 10)}, because(row.reason, 60'000)).exit_code, 9);
    EXPECT_EQ(judge({code(0, 9, 11)}, because(row.reason, 10)).exit_code, row.exit_code);
    LauncherEnd reported = because(row.reason, 10);
    reported.diagnostic.exit_code = 77;
    EXPECT_EQ(judge({}, reported).exit_code, 77);
  }
}

TEST(VerdictTest, RaisesTheSignalThatInterruptedIt) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome outcome =
        judge({victim(code(0, 1, 20))}, because(LauncherReason::kInterrupted, 10, signal));
    EXPECT_EQ(outcome.exit_code, 128 + signal);
    EXPECT_EQ(outcome.raise_signal, signal);
    EXPECT_FALSE(outcome.origin_is_worker);
  }
}

TEST(VerdictTest, TreatsAWorkerKilledByTheSchedulerAsInterrupted) {
  const LauncherEnd interrupted = because(LauncherReason::kInterrupted, 1000, SIGTERM);
  EXPECT_EQ(judge({killed(0, SIGTERM, 990)}, interrupted).raise_signal, SIGTERM);
  EXPECT_EQ(judge({killed(0, SIGSEGV, 990)}, interrupted).exit_code, 139);
  EXPECT_EQ(judge({code(0, 4, 990)}, interrupted).exit_code, 4);
  const LauncherEnd later = because(LauncherReason::kInterrupted, 10'000, SIGTERM);
  EXPECT_EQ(judge({killed(0, SIGTERM, 990)}, later).exit_code, 143);
  EXPECT_TRUE(judge({killed(0, SIGTERM, 990)}, later).origin_is_worker);
}

TEST(VerdictTest, TreatsAWorkerEndedByTheNoticeAsPreempted) {
  const LauncherEnd preempted = because(LauncherReason::kPreempted, 1000, SIGUSR1);
  EXPECT_EQ(judge({killed(0, SIGUSR1, 990)}, preempted).exit_code, 75);
  EXPECT_EQ(judge({killed(0, SIGSEGV, 990)}, preempted).exit_code, 139);
  EXPECT_EQ(judge({code(0, 4, 990)}, preempted).exit_code, 4);
  // Later failures of other ranks are not the cause.
  EXPECT_EQ(judge({victim(killed(1, SIGUSR1, 1000)), code(0, 1, 1010)}, preempted).exit_code, 75);
}

TEST(VerdictTest, AttributesBrokenConnectionsToALostHost) {
  const LauncherEnd lost = because(LauncherReason::kHostLost, 20'000);
  const Outcome consequence = judge({code(0, 1, 19'000)}, lost);
  EXPECT_EQ(consequence.exit_code, 121);
  EXPECT_EQ(consequence.candidates.size(), 1u);
  EXPECT_EQ(judge({out_of_memory(0, 19'000)}, lost).exit_code, 137);
  EXPECT_EQ(judge({watchdog(0, 19'000)}, lost).exit_code, 121);
  // Long before the host was silent: an independent failure.
  EXPECT_EQ(judge({code(0, 1, 12'000)}, lost).exit_code, 1);
}

TEST(TracebackTest, FindsTheLastOne) {
  EXPECT_EQ(last_traceback(""), "");
  EXPECT_EQ(last_traceback("no trace\nback\n"), "");
  const std::string tail =
      "Traceback (most recent call last):\n  File \"a.py\", line 1\nValueError: first\n"
      "retrying\n"
      "Traceback (most recent call last):\n  File \"b.py\", line 2, in f\n    g()\n"
      "RuntimeError: second\nbye\n";
  EXPECT_EQ(last_traceback(tail),
            "Traceback (most recent call last):\n  File \"b.py\", line 2, in f\n    g()\n"
            "RuntimeError: second\n");
}

TEST(TracebackTest, ReadsThroughPrefixesCarriageReturnsAndCutEnds) {
  EXPECT_EQ(last_traceback("x\n[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\"\n"
                           "[rank3]: KeyError: 'k'\nend\n"),
            "Traceback (most recent call last):\n  File \"a\"\nKeyError: 'k'\n");
  EXPECT_EQ(last_traceback("Traceback (most recent call last):\r\n  File\r\nE: x"),
            "Traceback (most recent call last):\n  File\nE: x\n");
}

TEST(TracebackTest, StartsAfterAProgressBar) {
  EXPECT_EQ(last_traceback("x\n\r 45%|####  | 3/7Traceback (most recent call last):\n  File \"a\"\n"
                           "ValueError: v\nbye\n"),
            "Traceback (most recent call last):\n  File \"a\"\nValueError: v\n");
}

TEST(TracebackTest, KeepsMessagesOfSeveralLinesAndAWorkersOriginal) {
  const std::string state =
      "Traceback (most recent call last):\n  File \"a\"\nRuntimeError: Error(s) in state_dict:\n"
      "\tMissing key\n\tOther key\n";
  EXPECT_EQ(last_traceback(state + "later\n"), state);
  const std::string loader =
      "Traceback (most recent call last):\n  File \"a\"\nRuntimeError: Caught in worker 0.\n"
      "Original Traceback (most recent call last):\n  File \"b\"\nValueError: inner\n";
  EXPECT_EQ(last_traceback(loader), loader);
}

TEST(TracebackTest, SkipsIgnoredExceptions) {
  const std::string cause = "Traceback (most recent call last):\n  File \"a\"\nValueError: cause\n";
  const std::string ignored =
      "Exception ignored in: <function D.__del__ at 0x7f>\n"
      "Traceback (most recent call last):\n  File \"c\"\nTypeError: late\n";
  EXPECT_EQ(last_traceback(cause + ignored), cause);
  EXPECT_EQ(last_traceback(ignored), "");
}

}  // namespace
}  // namespace ivy
