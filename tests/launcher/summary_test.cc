// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/summary.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

#include "launcher/screen/error_file.h"
#include "launcher/screen/machine_output.h"

namespace ivy {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

class SummaryTest : public ::testing::Test {
 protected:
  WorkerEnd& add(int rank, int code, bool after_stop = false) {
    WorkerEnd end;
    end.rank = rank;
    end.host = "node03";
    end.pid = 4700 + rank;
    end.status.code = code;
    end.after_stop = after_stop;
    end.at_ns = (764 + rank) * kSecond;
    ends.push_back(end);
    return ends.back();
  }
  std::string text() {
    const Outcome outcome = judge(ends, launcher_end);
    SummaryInputs inputs;
    inputs.ends = &ends;
    inputs.launcher_end = &launcher_end;
    inputs.outcome = &outcome;
    inputs.world_size = static_cast<int>(ends.size());
    inputs.log_path = log_path;
    inputs.quiet = quiet;
    inputs.head_logs = head_logs;
    inputs.node_logs = node_logs;
    inputs.output_errors = output_errors;
    inputs.unclean = unclean;
    inputs.attempts = attempts;
    inputs.attempt = attempt;
    inputs.max_attempts = 21;
    inputs.notes = notes;
    head = headline(inputs);
    return summary(inputs);
  }

  std::vector<WorkerEnd> ends;
  LauncherEnd launcher_end;
  std::function<std::string(int)> log_path;
  bool quiet = false;
  std::string head_logs;
  std::string node_logs;
  std::vector<std::string> output_errors;
  std::vector<std::string> unclean;
  std::vector<std::string> notes;
  std::string head;  // headline() for the last text().
  std::vector<FailedAttempt> attempts;
  int attempt = 1;
};

TEST_F(SummaryTest, NamesTheCauseOfEachAttempt) {
  WorkerEnd end = add(0, 3);
  EXPECT_EQ(attempt_cause(end, 4 * kSecond),
            "rank 0 (node03, pid 4700) with exit 3 after 00:12:40");
  attempts = {{1, "rank 1 (a) with exit 4"}, {2, "rank 0 (b) with\x1b]0;x\x07 SIGKILL"}};
  attempt = 3;
  const std::string failed = text();
  EXPECT_NE(failed.find("  attempt 1 of 21: rank 1 (a) with exit 4\n  attempt 2 of 21: rank 0 (b)"),
            std::string::npos)
      << failed;
  EXPECT_NE(failed.find("exit code 3 (from rank 0 at attempt 3 of 21)"), std::string::npos)
      << failed;
  EXPECT_EQ(failed.find('\x1b'), std::string::npos);
  ends.front().status.code = 0;
  EXPECT_TRUE(text().starts_with("ivyrun: succeeded at attempt 3 of 21\n  attempt 1 of 21: "));
  quiet = true;
  EXPECT_EQ(text(), "");
}

TEST_F(SummaryTest, CountsTheAttemptsInTheMiddleOfMany) {
  add(0, 3);
  attempt = 21;
  for (int number = 1; number <= 20; ++number) attempts.push_back({number, "a cause"});
  const std::string failed = text();
  EXPECT_NE(failed.find("attempt 1 of 21: a cause\n  ... 12 attempts omitted\n  attempt 14 of 21"),
            std::string::npos)
      << failed;
  EXPECT_NE(failed.find("  attempt 20 of 21: a cause\nivyrun: exit code 3"), std::string::npos);
}

TEST_F(SummaryTest, PrintsTheLogPathAfterASuccess) {
  add(0, 0);
  head_logs = "runs/j/0";
  EXPECT_EQ(text(), "ivyrun: logs: runs/j/0\n");
  node_logs = "/data/runs/j/0";
  EXPECT_EQ(text(), "ivyrun: logs: runs/j/0, and /data/runs/j/0 on every host\n");
  head_logs.clear();
  EXPECT_EQ(text(), "ivyrun: logs: /data/runs/j/0 on every host\n");
  quiet = true;
  EXPECT_EQ(text(), "");
}

TEST_F(SummaryTest, PrintsTheHostOfAFailedRanksFile) {
  add(0, 1);
  node_logs = "/data/runs/j/0";
  EXPECT_NE(text().find("  log:   /data/runs/j/0/rank00000.err on node03\nivyrun: exit code 1"),
            std::string::npos)
      << text();
  // A file on the launcher's host is nearer, so it is printed instead.
  head_logs = "runs/j/0";
  log_path = [](int) { return "runs/j/0/rank00000.err"; };
  EXPECT_NE(text().find("  log:   runs/j/0/rank00000.err\nivyrun: exit"), std::string::npos);
}

TEST_F(SummaryTest, PrintsTheLogPathIfNoRankIsToBlame) {
  launcher_end.reason = LauncherReason::kInterrupted;
  launcher_end.signal = SIGINT;
  launcher_end.diagnostic = Diagnostic{.id = "IVY-R003", .what = "interrupted by SIGINT"};
  head_logs = "runs/j/0";
  add(0, 1, true);
  EXPECT_NE(text().find("  logs:  runs/j/0\nivyrun: exit code 130"), std::string::npos) << text();
}

TEST_F(SummaryTest, UsesTheCauseAsTheHeadlineAndNoNote) {
  add(0, 3);
  notes = {"a note"};
  output_errors = {"/full: No space left on device"};
  const std::string failed = text();
  EXPECT_EQ(failed.find("ivyrun: warning: /full"), 0u) << failed;
  EXPECT_EQ(head.find("error[IVY-R001]: rank 0 failed first"), 0u) << head;
  EXPECT_NE(failed.find("ivyrun: " + head + "\n"), std::string::npos) << failed;
  ends[0].after_stop = true;
  launcher_end.reason = LauncherReason::kInterrupted;
  launcher_end.diagnostic =
      Diagnostic{.severity = Severity::kNote, .id = "IVY-R003", .what = "interrupted by SIGINT"};
  EXPECT_NE(text().find("ivyrun: " + head + "\n"), std::string::npos);
  EXPECT_EQ(head, "note[IVY-R003]: interrupted by SIGINT");
  launcher_end = {};
  ends.clear();
  add(0, 0);
  text();
  EXPECT_EQ(head, "");
  attempt = 2;
  attempts = {{1, "a cause"}};
  text();
  EXPECT_EQ(head, "succeeded at attempt 2 of 21");
}

TEST_F(SummaryTest, PrintsNothingAfterASuccess) {
  add(0, 0);
  add(1, 0);
  EXPECT_EQ(text(), "");
}

TEST_F(SummaryTest, PrintsOutputErrorsAfterASuccess) {
  add(0, 0);
  output_errors = {"12 lines of rank 0 not shown"};
  unclean = {"node3: pid 12 (python3) cannot be killed: D in nfs_wait"};
  EXPECT_EQ(text(),
            "ivyrun: warning: 12 lines of rank 0 not shown\n"
            "ivyrun: warning: node3: pid 12 (python3) cannot be killed: D in nfs_wait\n");
}

TEST_F(SummaryTest, ShowsTheFirstCauseWithItsTraceback) {
  ends.reserve(8);
  add(0, 1).stderr_tail =
      "warning\nTraceback (most recent call last):\n  File \"t.py\", line 1\nValueError: "
      "\x1b[31mno\n";
  for (const int rank : {1, 2, 4}) add(rank, 143, true);
  log_path = [](int rank) { return "runs/j/0/rank0000" + std::to_string(rank) + ".err"; };
  EXPECT_EQ(text(),
            "ivyrun: error[IVY-R001]: rank 0 failed first (node03, pid 4700) with exit 1 after "
            "00:12:44\n"
            "    Traceback (most recent call last):\n"
            "      File \"t.py\", line 1\n"
            "    ValueError: no\n"
            "  3 other ranks were stopped: 1-2,4\n"
            "  log:   runs/j/0/rank00000.err\n"
            "ivyrun: exit code 1 (from rank 0)\n");
}

TEST_F(SummaryTest, DoesNotRepeatATracebackThatWasJustPrinted) {
  WorkerEnd& end = add(0, 1);
  end.stderr_tail =
      "Traceback (most recent call last):\n  File \"t.py\", line 1\nValueError: no\n  more\n";
  end.was_just_printed = true;
  const std::string printed = text();
  EXPECT_NE(printed.find("    ValueError: no\n      more\n    (see the traceback above)\n"),
            std::string::npos)
      << printed;
  EXPECT_EQ(printed.find("Traceback"), std::string::npos) << printed;
}

TEST_F(SummaryTest, ShowsTheLastLinesWithoutATraceback) {
  std::string tail;
  for (int i = 0; i < 50; ++i) tail += "line " + std::to_string(i) + "\n";
  add(0, 1).stderr_tail = tail + "10%\r20%\r\n\n";
  const std::string shown = text();
  EXPECT_EQ(shown.find("    line 30\n"), std::string::npos);
  EXPECT_NE(shown.find("    line 31\n"), std::string::npos);
  EXPECT_NE(shown.find("    line 49\n    20%\nivyrun: exit"), std::string::npos);
}

TEST_F(SummaryTest, ShowsNoOldTracebackForASignal) {
  WorkerEnd& end = add(0, 0);
  end.status.signal = SIGSEGV;
  end.core_dumped = true;
  end.stderr_tail = "Traceback (most recent call last):\n  File \"a\"\nE: old\n" +
                    std::string(30, '\n') + "Fatal Python error: Segmentation fault\n";
  const std::string shown = text();
  EXPECT_NE(shown.find("with SIGSEGV (core dumped) after"), std::string::npos) << shown;
  EXPECT_NE(shown.find("    Fatal Python error: Segmentation fault\n"), std::string::npos);
  EXPECT_EQ(shown.find("E: old"), std::string::npos);
  EXPECT_NE(shown.find("ivyrun: exit code 139 (from rank 0)"), std::string::npos);
}

TEST_F(SummaryTest, KeepsTheHeadOfALongTraceback) {
  std::string tail = "Traceback (most recent call last):\n";
  for (int i = 0; i < 100; ++i) tail += "  File \"f" + std::to_string(i) + "\"\n";
  add(0, 1).stderr_tail = tail + "RecursionError: deep\n";
  const std::string shown = text();
  EXPECT_NE(shown.find("    Traceback (most recent call last):\n      ... 83 lines omitted\n"
                       "      File \"f83\"\n"),
            std::string::npos)
      << shown;
  EXPECT_NE(shown.find("    RecursionError: deep\n"), std::string::npos);
}

TEST_F(SummaryTest, NamesTheKernelsKiller) {
  WorkerEnd& end = add(0, 0);
  end.status.signal = SIGKILL;
  end.out_of_memory = true;
  EXPECT_NE(text().find("rank 0 failed first (node03, pid 4700): killed by the kernel OOM "
                        "killer (SIGKILL) after 00:12:44\n"
                        "    (no stderr output)\n"),
            std::string::npos)
      << text();
}

TEST_F(SummaryTest, ListsAtMostEightCandidates) {
  for (int rank = 0; rank < 20; ++rank) add(rank, 2);
  const std::string shown = text();
  EXPECT_NE(shown.find("  also:  rank 1 (node03, pid 4701) with exit 2 after 00:12:45\n"),
            std::string::npos);
  EXPECT_NE(shown.find("         rank 8 (node03"), std::string::npos);
  EXPECT_EQ(shown.find("         rank 9 (node03"), std::string::npos);
  EXPECT_NE(shown.find("         and 11 more: ranks 9-19\n"), std::string::npos);
  ends.resize(10);
  EXPECT_NE(text().find("         and 1 more: rank 9\n"), std::string::npos) << text();
}

TEST_F(SummaryTest, ReportsAProgramThatCouldNotBeStarted) {
  add(0, 127);
  const auto fail = [this](const std::string& failure, StartStep step, int error) {
    ends.front().exec_failure = failure;
    ends.front().failed_step = step;
    ends.front().failed_errno = error;
  };
  fail("exec: No such file or directory: /x", StartStep::kExec, ENOENT);
  EXPECT_EQ(
      text(),
      "ivyrun: error[IVY-R001]: rank 0 could not be started: exec: No such file or "
      "directory: /x (node03)\n"
      "  fix:   the program, or the interpreter or loader that it needs, is missing on node03\n"
      "ivyrun: exit code 127 (from ivyrun)\n");
  fail("exec: Exec format error: /x", StartStep::kExec, ENOEXEC);
  EXPECT_NE(text().find("  fix:   put its interpreter before it, or build it for the architecture"),
            std::string::npos);
  fail("clone: Resource temporarily unavailable", StartStep::kOther, EAGAIN);
  EXPECT_NE(text().find("  fix:   raise the limit of processes on node03 (ulimit -u"),
            std::string::npos)
      << text();
  fail("stdin: No such file or directory", StartStep::kStdin, ENOENT);
  EXPECT_NE(text().find("  fix:   make /dev/null readable on node03"), std::string::npos) << text();
  fail("chdir: No such file or directory: /gone", StartStep::kOther, ENOENT);
  EXPECT_EQ(text().find("the program, or the interpreter"), std::string::npos) << text();
  fail("stderr: Too many open files", StartStep::kOther, EMFILE);
  EXPECT_NE(text().find("  fix:   raise the limit of open files on node03 (ulimit -n)"),
            std::string::npos)
      << text();
}

TEST_F(SummaryTest, DescribesARankThatCouldNotBeStartedToPrograms) {
  add(0, 127).exec_failure = "exec: No such file or directory: /x";
  const Outcome outcome = judge(ends, launcher_end);
  SummaryInputs inputs;
  inputs.ends = &ends;
  inputs.launcher_end = &launcher_end;
  inputs.outcome = &outcome;
  const boost::json::object verdict = verdict_object(inputs);
  EXPECT_EQ(verdict.at("reason"), "worker");
  // The exit code is that of ivyrun, as in the text of the summary.
  EXPECT_EQ(verdict.at("origin"), "launcher");
  EXPECT_EQ(verdict.at("exit_code"), 127);
}

TEST_F(SummaryTest, PutsTheLaunchersReasonFirst) {
  launcher_end.reason = LauncherReason::kHostLost;
  launcher_end.at_ns = 765 * kSecond;
  launcher_end.diagnostic =
      Diagnostic{.id = "IVY-R006", .what = "host node04 is lost", .exit_code = 121};
  add(0, 1);
  add(1, 143, true);
  EXPECT_EQ(text(),
            "ivyrun: error[IVY-R006]: host node04 is lost\n"
            "  ranks: rank 0 (node03, pid 4700) with exit 1 after 00:12:44\n"
            "  1 rank was stopped: 1\n"
            "ivyrun: exit code 121 (from ivyrun)\n");
}

TEST_F(SummaryTest, DoesNotCallARankStoppedThatFailedByItselfAMomentLater) {
  add(0, 17);
  add(1, 17, true);
  add(2, 4, true);
  add(3, 143, true);
  const std::string all = text();
  EXPECT_NE(all.find("  1 other rank also exited with code 17: 1\n"
                     "  1 other rank failed while being stopped: 2\n"
                     "  1 other rank was stopped: 3\n"),
            std::string::npos)
      << all;
}

TEST_F(SummaryTest, NamesRanksThatHadFinishedBeforeTheFirstFailure) {
  add(0, 0);
  add(1, 0);
  add(2, 1);
  add(3, 0);
  const std::string all = text();
  EXPECT_NE(all.find("  before: ranks 0-1 had exited with code 0, the last one 1.0 s earlier\n"),
            std::string::npos)
      << all;
}

TEST_F(SummaryTest, CountsOnlyThoseAsStoppedThatHadStarted) {
  launcher_end.reason = LauncherReason::kRejected;
  launcher_end.diagnostic = Diagnostic{.id = "IVY-H011", .what = "no store", .exit_code = 122};
  add(0, 1, true).pid = 0;
  add(1, 1, true).pid = 0;
  EXPECT_EQ(text(), "ivyrun: error[IVY-H011]: no store\nivyrun: exit code 122 (from ivyrun)\n");
}

TEST_F(SummaryTest, ShowsTenthsBelowAMinute) {
  WorkerEnd end = add(0, 3);
  const auto after = [&](std::int64_t tenths) {
    end.at_ns = kSecond + tenths * kSecond / 10;
    return attempt_cause(end, kSecond).substr(attempt_cause(end, kSecond).find("after"));
  };
  EXPECT_EQ(after(0), "after 0.0 s");
  EXPECT_EQ(after(4), "after 0.4 s");
  EXPECT_EQ(after(599), "after 59.9 s");
  EXPECT_EQ(after(600), "after 00:01:00");
}

TEST_F(SummaryTest, NamesTheSignalThatInterruptedIt) {
  launcher_end.reason = LauncherReason::kInterrupted;
  launcher_end.signal = SIGINT;
  launcher_end.diagnostic =
      Diagnostic{.severity = Severity::kNote, .id = "IVY-R003", .what = "interrupted by SIGINT"};
  add(0, 1, true);
  EXPECT_EQ(text(),
            "ivyrun: note[IVY-R003]: interrupted by SIGINT\n"
            "  1 rank was stopped: 0\n"
            "ivyrun: exit code 130, SIGINT (from ivyrun)\n");
}

TEST_F(SummaryTest, EscapesOutputAndPaths) {
  add(0, 1).stderr_tail = "a\x1b]0;evil\x07\x01z\n";
  log_path = [](int) { return std::string("runs/\x1b[2J.err"); };
  const std::string shown = text();
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_NE(shown.find("    a\\x01z\n"), std::string::npos) << shown;
}

TEST_F(SummaryTest, PrefersTheErrorFile) {
  WorkerEnd& end = add(0, 1);
  end.stderr_tail = "noise\n";
  end.error_file =
      R"({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack":)"
      R"( "Traceback (most recent call last):\n  File \"a\"\nValueError: x\n", "timestamp": "1"}}})";
  EXPECT_NE(text().find("44\n    Traceback (most recent call last):\n      File \"a\"\n"
                        "    ValueError: x\nivyrun:"),
            std::string::npos)
      << text();
}

TEST(ErrorFileTest, ReadsLeniently) {
  EXPECT_EQ(read_error_file("").message, "");
  EXPECT_EQ(read_error_file(R"({"message": "plain"})").message, "plain");
  EXPECT_EQ(read_error_file(R"({"a": [1, {"b": null}], "message": {"message": "m\tA"}})").message,
            "m\tA");
  EXPECT_EQ(read_error_file(R"({"message": {"message": "cut off)").message, "cut off");
  EXPECT_EQ(read_error_file("not json").message, "not json");
  EXPECT_EQ(read_error_file(R"({"message": "\ud83d\ude00\ud800"})").message,
            "\xf0\x9f\x98\x80\xef\xbf\xbd");
  EXPECT_EQ(read_error_file(std::string(100'000, '[')).callstack, "");
  const ErrorFile both = read_error_file(
      R"({"message": {"message": "E", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}})");
  EXPECT_EQ(both.message, "E");
  EXPECT_EQ(both.callstack, "T");
}

}  // namespace
}  // namespace ivy
