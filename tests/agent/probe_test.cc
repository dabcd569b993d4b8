// SPDX-License-Identifier: Apache-2.0
// ivy-probe's answer as text, the probe itself with a test double of NVML, and all ways in which a
// probe can fail.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>

#include "agent/devices/core_files.h"
#include "agent/devices/discovery.h"
#include "agent/devices/probe_answer.h"
#include "agent/devices/probe_process.h"
#include "tests/support/device_tree.h"

namespace ivy {
namespace {

using namespace std::chrono_literals;

ProbeAnswer full_answer() {
  ProbeAnswer answer;
  answer.nvml.is_present = true;
  answer.nvml.driver_version = "535.104.05";
  NvmlDevice device;
  device.bdf = "0000:01:00.0";
  device.uuid = "GPU-a";
  device.model = "NVIDIA\tA100";  // A tab must not end the field.
  device.minor = 3;
  device.users = {7, 8};
  device.used_bytes = 99;
  answer.nvml.devices.push_back(device);
  NvmlDevice cut;
  cut.bdf = "0000:02:00.0";
  cut.uuid = "GPU-b";
  cut.is_mig_enabled = true;
  cut.slices = {MigSlice{1, 0, "MIG-1", NodeState::kAbsent, {9}, 5},
                MigSlice{2, 1, "MIG-2", NodeState::kAbsent, {}, 0}};
  answer.nvml.devices.push_back(cut);
  answer.cores = {{{0, 64}, 0, 0, 0}, {{1, 65}, -1, -1, -1}};
  return answer;
}

TEST(ProbeAnswerTest, ReadsWhatItWrites) {
  const Result<ProbeAnswer> read =
      parse_probe_text("a library said this\n" + probe_text(full_answer()));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->nvml.driver_version, "535.104.05");
  ASSERT_EQ(read->nvml.devices.size(), 2u);
  EXPECT_EQ(read->nvml.devices[0].model, "NVIDIA A100");
  EXPECT_EQ(read->nvml.devices[0].minor, 3);
  EXPECT_EQ(read->nvml.devices[0].users, (std::vector<int>{7, 8}));
  EXPECT_EQ(read->nvml.devices[0].used_bytes, 99u);
  ASSERT_EQ(read->nvml.devices[1].slices.size(), 2u);
  EXPECT_EQ(read->nvml.devices[1].slices[0].users, std::vector<int>{9});
  EXPECT_EQ(read->nvml.devices[1].slices[1].compute_instance, 1);
  EXPECT_EQ(read->cores, full_answer().cores);
}

TEST(ProbeAnswerTest, RejectsIncompleteAnswers) {
  const std::string text = probe_text(full_answer());
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_FALSE(parse_probe_text(text.substr(0, bytes)).ok()) << bytes;
  const std::string begin = "ivy-probe 1\n";
  for (const std::string line :
       {"ivy device\t1", "ivy device\ta\tb\tx\t0\tm", "ivy slice\tnowhere\t1\t0\tMIG-1",
        "ivy user\tGPU-a\tx\t0", "ivy core\t\t0\t0\t0", "ivy core\t0\ta\t0\t0", "ivy what\tx"})
    EXPECT_FALSE(parse_probe_text(begin + line + "\nivy end\n").ok()) << line;
  EXPECT_FALSE(parse_probe_text("ivy nvml\t1\nivy-probe 1\nivy end\n").ok());
  const Result<ProbeAnswer> old =
      parse_probe_text("ivy-probe: /lib/libc.so.6: version `GLIBC_2.34' not found\n");
  ASSERT_FALSE(old.ok());
  EXPECT_NE(old.error().message.find("GLIBC_2.34"), std::string::npos);
}

// A shell script as the probe, read by the supervisor.
class ProbeProcessTest : public testing::Test {
 protected:
  Result<ProbeAnswer> run(const std::string& script, std::chrono::milliseconds limit = 10s) {
    std::optional<Result<ProbeAnswer>> answer;
    boost::asio::io_context loop;
    {
      ProbeProcess probe(loop);
      probe.start({"/bin/sh", "-c", script}, limit, [&](const Result<ProbeAnswer>& got) {
        EXPECT_FALSE(answer.has_value());
        answer = got;
      });
      loop.run();
    }
    EXPECT_TRUE(answer.has_value());
    reap();
    return answer.value_or(Error{Code::kInternal, "none"});
  }
  // Reaps all children; none may be left running.
  void reap() {
    for (int i = 0; i < 500 && waitpid(-1, nullptr, WNOHANG) >= 0; ++i) usleep(10'000);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  }
};

TEST_F(ProbeProcessTest, ReadsAnAnswer) {
  const Result<ProbeAnswer> answer = run("printf 'ivy-probe 1\\nivy nvml\\t535\\nivy end\\n'");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->nvml.driver_version, "535");
}

TEST_F(ProbeProcessTest, DoesNotWaitForAProbeThatHangsAfterItsAnswer) {
  EXPECT_TRUE(run("printf 'ivy-probe 1\\nivy end\\n'; exec sleep 1000").ok());
}

TEST_F(ProbeProcessTest, KillsAProbeThatHangs) {
  const auto began = std::chrono::steady_clock::now();
  const Result<ProbeAnswer> answer = run("trap '' TERM; while :; do sleep 0.01; done", 100ms);
  EXPECT_EQ(answer.error().message, "ivy-probe did not answer within 100 ms");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 8s);
}

TEST_F(ProbeProcessTest, ReportsOtherFailures) {
  EXPECT_EQ(run("echo 'version GLIBC_2.38 not found' >&2; exit 1").error().message,
            "ivy-probe exited before its answer was complete: version GLIBC_2.38 not found");
  EXPECT_EQ(run("kill -SEGV $$").error().message,
            "ivy-probe exited before its answer was complete");
  EXPECT_FALSE(run("printf 'ivy-probe 1\\nivy device\\tgarbage\\n'").ok());
  EXPECT_FALSE(run("head -c 3000000 /dev/zero").ok()) << "more than an answer may have";
}

TEST_F(ProbeProcessTest, ReportsAMissingProgram) {
  boost::asio::io_context loop;
  ProbeProcess probe(loop);
  std::string message;
  probe.start({"/nonexistent/ivy-probe"}, 10s,
              [&](const Result<ProbeAnswer>& got) { message = got.error().message; });
  loop.run();
  EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  reap();
}

// The real ivy-probe, with a test double instead of NVML.
class RealProbeTest : public ProbeProcessTest {
 protected:
  void SetUp() override { setenv("LD_LIBRARY_PATH", IVY_NVML_DOUBLE, 1); }
  void TearDown() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("NVML_DOUBLE");
  }
  Result<ProbeAnswer> ask(const std::string& double_does) {
    setenv("NVML_DOUBLE", double_does.c_str(), 1);
    return run("exec " IVY_PROBE_BINARY " devices cores");
  }
};

TEST_F(RealProbeTest, QueriesNvml) {
  DeviceTree tree;
  tree.write(
      "/nvml",
      "gpu 0000:01:00.0 GPU-a 0 0 NVIDIA H100 80GB HBM3\nuser 4711 1024\nuser 4712 1\n"
      "gpu 0000:02:00.0 GPU-b 1 1 NVIDIA A100\nslice 1 0 MIG-1\nslice 2 0 MIG-2\nuser 5 6\n");
  const Result<ProbeAnswer> answer = ask(tree.root() + "/nvml");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer->nvml.devices.size(), 2u) << answer->nvml.error;
  EXPECT_EQ(answer->nvml.devices[0].bdf, "0000:01:00.0");
  EXPECT_EQ(answer->nvml.devices[0].model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(answer->nvml.devices[0].users, (std::vector<int>{4711, 4712}));
  EXPECT_EQ(answer->nvml.devices[0].used_bytes, 1025u);
  ASSERT_EQ(answer->nvml.devices[1].slices.size(), 2u);
  EXPECT_EQ(answer->nvml.devices[1].slices[1].uuid, "MIG-2");
  EXPECT_EQ(answer->nvml.devices[1].slices[1].users, std::vector<int>{5});
}

TEST_F(RealProbeTest, HwlocAndTheFilesAgreeAboutTheCores) {
  const Result<ProbeAnswer> answer = ask("refuse");
  ASSERT_TRUE(answer.ok());
  const CoreList allowed = allowed_cores("");
  std::vector<Core> by_hwloc;
  for (Core core : answer->cores) {
    core.processors = common_cores(core.processors, allowed);
    if (!core.processors.empty()) by_hwloc.push_back(core);
  }
  if (by_hwloc.empty()) GTEST_SKIP() << "no hwloc, or it sees no cores here";
  EXPECT_EQ(by_hwloc, read_cores("", allowed));
}

TEST_F(RealProbeTest, ReportsWhyNvmlDoesNotAnswer) {
  const Result<ProbeAnswer> rejected = ask("refuse");
  ASSERT_TRUE(rejected.ok());
  EXPECT_FALSE(rejected->nvml.is_present);
  EXPECT_EQ(rejected->nvml.error, "nvmlInit: Driver/library version mismatch");
  EXPECT_FALSE(ask("crash").ok());
  unsetenv("LD_LIBRARY_PATH");
  const Result<ProbeAnswer> absent = ask("none");
  ASSERT_TRUE(absent.ok());
  EXPECT_FALSE(absent->nvml.is_present);
}

// Discovery as a whole: whether it starts a probe.
class DiscoveryTest : public ProbeProcessTest {
 protected:
  HostFacts describe(const Hello& hello) {
    tree_.write("/probe",
                "#!/bin/sh\ntouch " + tree_.root() +
                    "/asked\nprintf 'ivy-probe 1\\nivy no-nvml\\tit is a script\\nivy end\\n'\n");
    chmod((tree_.root() + "/probe").c_str(), 0700);
    boost::asio::io_context loop;
    Discovery discovery(loop, tree_.root() + "/probe", tree_.root());
    HostFacts facts;
    int calls = 0;
    discovery.describe(hello, [&](const HostFacts& found) {
      facts = found;
      ++calls;
    });
    loop.run();
    EXPECT_EQ(calls, 1);
    reap();
    return facts;
  }
  bool was_asked() { return access((tree_.root() + "/asked").c_str(), F_OK) == 0; }
  DeviceTree tree_;
};

TEST_F(DiscoveryTest, DoesNotRunTheProbeWithoutDriverFiles) {
  tree_.pci("0000:00:02.0", "0x8086", "0x030000");
  tree_.pci("0000:01:00.0", "0x10de", "0x030200");  // Without a driver.
  const HostFacts facts = describe(Hello{});
  EXPECT_FALSE(was_asked());
  EXPECT_EQ(facts.accelerators(), 0u);
  EXPECT_EQ(facts.core_list_size(), 0);
}

TEST_F(DiscoveryTest, RunsTheProbeIfADriverIsPresentOrCoresAreRequested) {
  tree_.nvidia(0, "0000:01:00.0", "GPU-a");
  const HostFacts facts = describe(Hello{});
  EXPECT_TRUE(was_asked());
  EXPECT_EQ(facts.accelerators(), 1u);
  EXPECT_EQ(facts.device_view().source(),
            "files, because NVML could not be queried: it is a script");
}

TEST_F(DiscoveryTest, ReadsCoresFromFilesIfTheProbeReportsNone) {
  Hello hello;
  hello.set_read_cores(true);
  const HostFacts facts = describe(hello);
  EXPECT_TRUE(was_asked());
  EXPECT_GT(facts.core_list_size(), 0);
  EXPECT_NE(facts.allowed_cores(), "");
}

}  // namespace
}  // namespace ivy
