// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/check_verdict.h"

#include <gtest/gtest.h>

#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

using Lines = std::vector<std::string>;

CheckWish wish() {
  CheckWish wish;
  wish.commands = {"dcgmi diag -r 1"};
  wish.limit = std::chrono::seconds(60);
  return wish;
}

CheckedHost host(std::size_t index) {
  CheckedHost host;
  host.host = index;
  host.name = "node0" + std::to_string(index + 1);
  CheckSpace space;
  space.mutable_health()->set_disk_free(100ull << 30);
  space.mutable_health()->set_shared_size(8ull << 30);
  space.mutable_health()->set_shared_free(8ull << 30);
  host.space = space;
  return host;
}

CheckedHost with_output(std::size_t index, int exit_code, const std::string& output) {
  CheckedHost checked = host(index);
  CheckedCommand& result = checked.commands.emplace_back();
  result.set_exit_code(exit_code);
  result.set_output(output);
  return checked;
}

// Returns each failure in short, such as "node02 IVY-H020 exit code 3: no GPU".
Lines failed(const CheckWish& wish, const std::vector<CheckedHost>& hosts) {
  Lines lines;
  for (const CheckFailure& failure : judge_checks(wish, hosts)) {
    EXPECT_FALSE(failure.fix.empty()) << failure.check;
    EXPECT_FALSE(failure.check.empty());
    lines.push_back(failure.name + " " + failure.id + " " + failure.reason.line());
  }
  return lines;
}

TEST(CheckVerdict, PassesHealthyHosts) {
  EXPECT_EQ(failed(wish(), {host(0), with_output(1, 0, "fine\n")}), Lines{});
  EXPECT_EQ(failed(wish(), {with_output(0, 0, "{\"ok\": true, \"reason\": \"8 GPUs\"}\n")}),
            Lines{});
}

TEST(CheckVerdict, TakesTheReasonFromTheLastLine) {
  EXPECT_EQ(failed(wish(), {with_output(1, 3, "GPU 0: ok\nGPU 3: fell off the bus\n\n")}),
            Lines{"node02 IVY-H020 exit code 3: GPU 3: fell off the bus"});
  EXPECT_EQ(failed(wish(), {with_output(1, 3, "")}), Lines{"node02 IVY-H020 exit code 3"});
  EXPECT_EQ(failed(wish(), {with_output(1, 137, "")}), Lines{"node02 IVY-H020 killed by signal 9"});
}

TEST(CheckVerdict, TakesTheReasonFromALineOfJson) {
  const std::string report = "{\"ok\": false, \"reason\": \"2 links are down\"}\nthe end\n";
  EXPECT_EQ(failed(wish(), {with_output(0, 0, report)}), Lines{"node01 IVY-H020 2 links are down"});
  EXPECT_EQ(failed(wish(), {with_output(0, 1, report)}), Lines{"node01 IVY-H020 2 links are down"});
  EXPECT_EQ(failed(wish(), {with_output(0, 0, "{\"ok\": false}\n")}),
            Lines{"node01 IVY-H020 it reports \"ok\": false"});
  // The exit code counts.
  EXPECT_EQ(failed(wish(), {with_output(0, 4, "{\"ok\": true}\n")}),
            Lines{"node01 IVY-H020 exit code 4"});
  // These are no reports.
  EXPECT_EQ(failed(wish(), {with_output(0, 0, "{\"ok\": 0}\n{broken\n{\"other\": false}\n")}),
            Lines{});
}

TEST(CheckVerdict, EscapesTheOutputOfAHost) {
  EXPECT_EQ(failed(wish(), {with_output(0, 1, "\x1b[31mred\n")}).front().find('\x1b'),
            std::string::npos);
}

TEST(CheckVerdict, SaysHowMuchOutputWasDropped) {
  CheckedHost checked = with_output(0, 1, "line 1\nline 2\nlast\n");
  checked.commands.front().set_dropped_bytes(5u << 20);
  const std::vector<CheckFailure> failures = judge_checks(wish(), {checked});
  ASSERT_EQ(failures.size(), 1u);
  const std::string details = failures.front().details.lines();
  EXPECT_NE(details.find("it printed 5"), std::string::npos) << details;
  EXPECT_NE(details.find("were kept\nline 1\nline 2"), std::string::npos) << details;
}

TEST(CheckVerdict, NamesACommandThatWasKilledAtTheLimit) {
  CheckedHost checked = with_output(1, 137, "waiting for the driver\n");
  checked.commands.front().set_was_late(true);
  EXPECT_EQ(
      failed(wish(), {checked}),
      Lines{"node02 IVY-H023 it did not finish within --check-timeout 60 s; it was killed with "
            "all its children"});
}

TEST(CheckVerdict, NamesTheStepAtWhichAHostHangs) {
  CheckedHost stuck = host(0);
  stuck.is_late = true;
  stuck.doing = "the file system of /data";
  CheckedHost silent = host(1);
  silent.is_late = true;
  EXPECT_EQ(
      failed(wish(), {stuck, silent}),
      (Lines{"node01 IVY-H023 they did not finish within --check-timeout 60 s; it still waits "
             "for the file system of /data",
             "node02 IVY-H023 they did not finish within --check-timeout 60 s; the host has "
             "not begun"}));
  CheckedHost broken = host(0);
  broken.breakdown = "ivy-node check was killed by signal 9 (Killed)";
  EXPECT_EQ(failed(wish(), {broken}),
            Lines{"node01 IVY-H024 ivy-node check was killed by signal 9 (Killed)"});
}

TEST(CheckVerdict, RejectsAFullDiskAndMissingSharedMemory) {
  CheckedHost full = host(0);
  full.space->mutable_health()->set_disk_free(1u << 20);
  CheckedHost bare = host(1);
  bare.space->mutable_health()->set_shared_size(0);
  // A warning of --doctor does not keep a host out.
  CheckedHost little = host(2);
  little.space->mutable_health()->set_disk_free(512u << 20);
  const Lines lines = failed(wish(), {full, bare, little});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("node01 IVY-H024 only 1")) << lines[0];
  EXPECT_EQ(lines[1], "node02 IVY-H024 /dev/shm does not exist");
}

TEST(CheckVerdict, ComparesTheNumberOfDevices) {
  CheckWish eight = wish();
  eight.devices = 8;
  CheckedHost all = host(0);
  all.devices = 8;
  CheckedHost lacking = host(1);
  lacking.devices = 7;
  lacking.device_reason = "GPU 3 (0000:4e:00.0): cannot be opened";
  CheckedHost many = host(2);
  many.devices = 9;
  EXPECT_EQ(
      failed(eight, {all, lacking, many}),
      (Lines{"node02 IVY-H021 7 usable accelerators instead of 8: GPU 3 (0000:4e:00.0): cannot "
             "be opened",
             "node03 IVY-H021 9 usable accelerators instead of 8"}));
}

// Returns the hosts that fail if these are their speeds; 0: not measured.
Lines slow_hosts(const std::vector<double>& operations, const std::vector<double>& streams) {
  CheckWish load = wish();
  load.load = true;
  std::vector<CheckedHost> hosts;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    hosts.push_back(host(i));
    hosts.back().operations_per_s = operations[i];
    if (i < streams.size()) hosts.back().stream_per_s = streams[i];
  }
  return failed(load, hosts);
}

TEST(CheckVerdict, NamesOutliersByTheMedian) {
  EXPECT_EQ(slow_hosts({}, {}), Lines{});
  EXPECT_EQ(slow_hosts({1e9}, {}), Lines{});
  EXPECT_EQ(slow_hosts({1e9, 0.71e9, 1e9}, {}), Lines{});
  EXPECT_EQ(slow_hosts({1e9, 0.69e9, 1e9}, {}),
            Lines{"node02 IVY-H022 arithmetic: 690 Moperations/s, 0.69 x the median of 3 hosts, 1 "
                  "Goperations/s (the bound is 0.7 x)"});
  EXPECT_EQ(slow_hosts({1e9, 1e9, 1e9, 1e9}, {1.2e10, 1.1e10, 1.2e9, 1.25e10}),
            Lines{"node03 IVY-H022 network: 1.2 GB/s, 0.10 x the median of 4 hosts, 11.5 GB/s (the "
                  "bound is 0.7 x)"});
  // With two hosts there is no majority: only a large difference tells which one is slow.
  EXPECT_EQ(slow_hosts({1e9, 0.6e9}, {}), Lines{});
  EXPECT_EQ(slow_hosts({1e9, 0.5e9}, {}).size(), 1u);
}

TEST(CheckVerdict, NamesHostsWithoutAStream) {
  CheckWish load = wish();
  load.load = true;
  CheckedHost cut = host(1);
  cut.stream_per_s = 0;
  cut.stream_error = "10.0.0.1:4000: Connection refused";
  CheckedHost well = host(0);
  well.stream_per_s = 1e9;
  EXPECT_EQ(
      failed(load, {well, cut}),
      Lines{"node02 IVY-H022 no stream to or from this host arrived: 10.0.0.1:4000: Connection "
            "refused"});
}

TEST(CheckVerdict, PutsHostsWithTheSameReasonIntoOneMessage) {
  const std::vector<CheckFailure> failures = judge_checks(
      wish(), {with_output(0, 127, "sh: 1: dcgmi: not found\n"), host(1),
               with_output(2, 127, "sh: 1: dcgmi: not found\n"), with_output(3, 1, "GPU 3\n")});
  const std::vector<Diagnostic> messages = check_diagnostics(failures, "before the start");
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].what,
            "hosts node[01,03] failed a check before the start: --check 'dcgmi diag -r 1'");
  EXPECT_EQ(messages[0].cause, "exit code 127: sh: 1: dcgmi: not found");
  EXPECT_NE(messages[0].fix.find("install it there"), std::string::npos);
  EXPECT_EQ(messages[0].exit_code, kExitRejected);
  EXPECT_EQ(messages[1].where, "node04");
  EXPECT_NE(messages[1].fix.find("--exclude node04,"), std::string::npos) << messages[1].fix;

  const std::vector<Finding> findings = check_findings(failures);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].hosts, (Lines{"node01", "node03"}));
  EXPECT_TRUE(findings[0].has_failed);
}

TEST(CheckVerdict, ListsTheFiguresOfEachHost) {
  std::vector<CheckedHost> hosts(3);
  hosts[0].name = "node01";
  hosts[0].operations_per_s = 61.2e9;
  hosts[0].stream_per_s = 1.17e9;
  hosts[1].name = "node02";  // Measured alone.
  hosts[1].operations_per_s = 59e9;
  hosts[2].name = "node03";  // Not measured.
  EXPECT_EQ(load_lines(hosts),
            (Lines{"node01: 61.2 Goperations/s, 1.17 GB/s", "node02: 59 Goperations/s"}));
}

TEST(CheckVerdict, ListsTheChecks) {
  CheckWish all = wish();
  all.devices = 8;
  all.load = true;
  EXPECT_EQ(check_names(all).size(), 4u);
}

}  // namespace
}  // namespace ivy
