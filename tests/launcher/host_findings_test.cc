// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/host_findings.h"

#include <gtest/gtest.h>

#include <limits>

namespace ivy {
namespace {

constexpr std::uint64_t kGibibyte = 1u << 30;

ExaminedHost healthy(const std::string& name) {
  ExaminedHost host;
  host.name = name;
  host.transport = "ssh";
  host.facts.set_architecture("x86_64");
  host.facts.set_interpreter("/usr/bin/python3");
  host.facts.set_interpreter_version("3.11");
  host.facts.set_containment("cgroup /sys/fs/cgroup/x");
  HostCheckup& health = *host.facts.mutable_health();
  health.set_c_library("glibc 2.36");
  health.set_disk_free(100 * kGibibyte);
  health.set_shared_size(8 * kGibibyte);
  health.set_shared_free(8 * kGibibyte);
  health.set_memory_free(8 * kGibibyte);
  health.set_locked_limit(std::numeric_limits<std::uint64_t>::max());
  health.set_files_limit(65'536);
  return host;
}

// Returns each finding in short, for instance "FAIL disk a,b".
std::vector<std::string> found(const Examination& examined) {
  std::vector<std::string> lines;
  for (const Finding& finding : find_problems(examined)) {
    std::string line = (finding.has_failed ? "FAIL " : "WARN ") + finding.check;
    for (const std::string& host : finding.hosts) line += " " + host;
    EXPECT_FALSE(finding.fix.empty()) << finding.what;
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(HostFindings, HealthyHostsHaveNone) {
  const Examination examined{"", {healthy("a"), healthy("b")}, {}};
  EXPECT_EQ(found(examined), Lines{});
  const std::string text = findings_text(examined, {});
  EXPECT_NE(text.find("all checks passed"), std::string::npos) << text;
  EXPECT_NE(text.find("glibc 2.36"), std::string::npos) << text;
}

TEST(HostFindings, NameEachProblemOnceForItsHosts) {
  Examination examined{"torch", {healthy("a"), healthy("b"), healthy("c")}, {}};
  for (ExaminedHost& host : examined.hosts) host.facts.mutable_health()->set_module_version("2.15");
  for (const std::size_t i : {0u, 1u}) {
    examined.hosts[i].facts.mutable_health()->set_shared_free(1 << 20);
    examined.hosts[i].clock_ms = 90'000;
  }
  examined.hosts[2].facts.mutable_health()->set_disk_free(0);
  examined.hosts[2].facts.mutable_health()->clear_module_version();
  examined.hosts[2].facts.mutable_health()->set_module_error("no module named torch");
  examined.hosts[2].facts.mutable_health()->set_files_limit(1'024);
  EXPECT_EQ(found(examined), (Lines{"FAIL disk c", "FAIL module c", "WARN clock a b",
                                    "WARN shm a b", "WARN nofile c"}));
}

TEST(HostFindings, RespectTheErrorOfAClocksMeasurement) {
  Examination examined{"", {healthy("a")}, {}};
  examined.hosts[0].clock_ms = -3'000;
  examined.hosts[0].clock_error_ms = 5'000;
  EXPECT_EQ(found(examined), Lines{});
  examined.hosts[0].clock_error_ms = 10;
  EXPECT_EQ(found(examined), Lines{"WARN clock a"});
}

TEST(HostFindings, NameHostsThatDifferFromTheOthers) {
  Examination examined{"", {healthy("a"), healthy("b"), healthy("c")}, {}};
  examined.hosts[1].facts.mutable_health()->set_c_library("glibc 2.28");
  examined.hosts[2].facts.set_interpreter_version("3.9");
  EXPECT_EQ(found(examined), (Lines{"WARN glibc b", "WARN python c"}));
}

TEST(HostFindings, CountsTheHostsThatAreAsExpected) {
  Examination examined{"", {healthy("a"), healthy("b")}, {}};
  examined.hosts[0].facts.set_interpreter_version("3.9");
  const std::vector<Finding> tied = find_problems(examined);
  ASSERT_EQ(tied.size(), 1u);
  EXPECT_EQ(tied[0].hosts, Lines{"b"}) << "in a tie the first host counts";
  EXPECT_EQ(tied[0].what, "Python 3.11, but 3.9 on 1 other host");
  examined.hosts.push_back(healthy("c"));
  const std::vector<Finding> findings = find_problems(examined);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].what, "Python 3.9, but 3.11 on 2 other hosts");
}

TEST(HostFindings, FailEachHostOfARejection) {
  const Examination examined{
      "",
      {healthy("n1"), healthy("n2"), healthy("x")},
      {Diagnostic{.what = "program not found", .where = "n[1-2]", .fix = "install it"},
       Diagnostic{.what = "a.py differs on x", .where = "/home/a.py", .fix = "copy it"}}};
  EXPECT_EQ(found(examined), (Lines{"FAIL start n1 n2", "FAIL start"}));
  const std::string text = findings_text(examined, find_problems(examined));
  EXPECT_NE(text.find("FAIL start n[1-2]: program not found"), std::string::npos) << text;
  EXPECT_NE(text.find("FAIL start: /home/a.py: a.py differs on x"), std::string::npos) << text;
}

TEST(HostFindings, ShowTheModuleAsAColumn) {
  Examination examined{"torch", {healthy("a")}, {}};
  examined.hosts[0].facts.mutable_health()->set_module_version("2.15");
  const std::string text = findings_text(examined, {});
  EXPECT_NE(text.find("PYTHON  torch  GPUS"), std::string::npos) << text;
  EXPECT_NE(text.find("3.11    2.15   0"), std::string::npos) << text;
}

TEST(HostFindings, CheckLockedMemoryOnHostsWithDevices) {
  Examination examined{"", {healthy("a")}, {}};
  examined.hosts[0].facts.mutable_health()->set_locked_limit(8u << 20);
  EXPECT_EQ(found(examined), Lines{});
  examined.hosts[0].facts.set_accelerators(8);
  EXPECT_EQ(found(examined), Lines{"WARN memlock a"});
  EXPECT_EQ(findings_object(examined, {}).at("hosts").at(0).at("memlock").as_uint64(), 8u << 20);
}

TEST(HostFindings, NamesTheToolOfTheVendor) {
  Examination examined{"", {healthy("a")}, {}};
  HostFacts& facts = examined.hosts[0].facts;
  facts.mutable_device_view()->add_notes("1 AMD device cannot be used here");
  std::vector<Finding> findings = find_problems(examined);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].fix, "run nvidia-smi or amd-smi or xpu-smi there for details");
  facts.set_accelerator_source("amd");
  findings = find_problems(examined);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].fix, "run amd-smi there for details");
}

TEST(HostFindings, ListAnUnreachableHostAsARow) {
  ExaminedHost lost;
  lost.name = "b";
  lost.is_up = false;
  lost.step = "connecting";
  lost.failure = "refused\x1b[2J";
  ExaminedHost walled = lost;
  walled.name = "c";
  walled.is_about_ports = true;
  const Examination examined{"",
                             {healthy("a"), lost, walled},
                             {Diagnostic{.what = "no such program", .fix = "install it"}}};
  EXPECT_EQ(found(examined), (Lines{"FAIL reach b", "FAIL ports c", "FAIL start"}));
  const std::string text = findings_text(examined, find_problems(examined));
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_NE(text.find("3 checks failed, 0 warnings"), std::string::npos) << text;
}

}  // namespace
}  // namespace ivy
