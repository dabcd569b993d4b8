// SPDX-License-Identifier: Apache-2.0
// The record of a job, from which a new launcher takes over: every field survives, and a
// truncated record or one of another build is rejected.
#include "launcher/job/control/job_record.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "proto/contract/build.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

Options all_options() {
  Options options;
  options.command = {"train.py", "--lr", "\xff\xfe"};
  options.working_directory = "/work";
  options.log_dir = "/logs";
  options.log_to = LogLocation::kBoth;
  options.quiet = true;
  options.lease = milliseconds(90'000);
  options.shutdown_timeout = milliseconds(1'500);
  options.timeout = milliseconds(3'600'000);
  options.transport = TransportChoice::kSsh;
  options.ssh_port = 2222;
  options.ssh_command = {"ssh", "-F", "f"};
  options.ssh_args = {"-v"};
  options.exec_command = {"docker", "exec", "-i", "{host}"};
  options.fanout = 7;
  options.output = "out-%r";
  options.name = "bert";
  options.stall_timeout = std::chrono::seconds(90);
  options.on_stall = OnStall::kStop;
  options.notice_time = std::chrono::seconds(40);
  options.preempt_signal = SIGUSR1;
  options.metrics_file = "/metrics";
  options.start_timeout = milliseconds(5'000);
  options.no_store = true;
  options.no_python_hook = true;
  options.on_failure = OnFailure::kReplace;
  options.min_workers = 3;
  options.max_replacements = 4;
  return options;
}

TEST(JobRecord, KeepsOptions) {
  const Options before = all_options();
  ctl::RecordedOptions recorded;
  record_options(before, recorded);
  const Options after = recorded_options(recorded);
  EXPECT_EQ(after.command, before.command);
  EXPECT_EQ(after.working_directory, before.working_directory);
  EXPECT_EQ(after.log_dir, before.log_dir);
  EXPECT_EQ(after.log_to, before.log_to);
  EXPECT_EQ(after.quiet, before.quiet);
  EXPECT_EQ(after.lease, before.lease);
  EXPECT_EQ(after.shutdown_timeout, before.shutdown_timeout);
  EXPECT_EQ(after.timeout, before.timeout);
  EXPECT_EQ(after.transport, before.transport);
  EXPECT_EQ(after.ssh_port, before.ssh_port);
  EXPECT_EQ(after.ssh_command, before.ssh_command);
  EXPECT_EQ(after.ssh_args, before.ssh_args);
  EXPECT_EQ(after.exec_command, before.exec_command);
  EXPECT_EQ(after.fanout, before.fanout);
  EXPECT_EQ(after.output, before.output);
  EXPECT_EQ(after.name, before.name);
  EXPECT_EQ(after.stall_timeout, before.stall_timeout);
  EXPECT_EQ(after.on_stall, before.on_stall);
  EXPECT_EQ(after.notice_time, before.notice_time);
  EXPECT_EQ(after.preempt_signal, before.preempt_signal);
  EXPECT_EQ(after.metrics_file, before.metrics_file);
  EXPECT_EQ(after.start_timeout, before.start_timeout);
  EXPECT_EQ(after.no_store, before.no_store);
  EXPECT_EQ(after.no_python_hook, before.no_python_hook);
  EXPECT_EQ(after.on_failure, before.on_failure);
  EXPECT_EQ(after.min_workers, before.min_workers);
  EXPECT_EQ(after.max_replacements, before.max_replacements);
  EXPECT_TRUE(after.detach);
  EXPECT_EQ(after.input.kind, InputChoice::Kind::kNone);
}

TEST(JobRecord, KeepsAbsentTimesAbsent) {
  ctl::RecordedOptions recorded;
  record_options(Options{}, recorded);
  EXPECT_FALSE(recorded_options(recorded).timeout);
  EXPECT_FALSE(recorded_options(recorded).shutdown_timeout);
}

TEST(JobRecord, KeepsHostsAndPlan) {
  std::vector<Host> hosts(3);
  hosts[0] = Host{.name = "a", .user = "u", .port = 22, .slots = {}, .fake = {}, .origin = ""};
  hosts[1].name = "idle";
  hosts[2].name = "fake1";
  hosts[2].fake = 1;
  JobPlan plan;
  plan.world_size = 3;
  plan.master_address = "10.0.0.1";
  plan.master_port = 29500;
  plan.store_port = 29501;
  plan.program = "train.py";
  plan.hosts.push_back({"a", Transport::kSsh, 0, {{0, 0}, {1, 1}}, 0});
  plan.hosts.push_back({"fake1", Transport::kLocal, 1, {{2, 0}}, 2});
  ctl::JobRecord record;
  record_hosts(hosts, record);
  record_plan(plan, record);
  EXPECT_EQ(recorded_hosts(record), hosts);
  const JobPlan after = recorded_plan(record);
  ASSERT_EQ(after.hosts.size(), 2u);
  EXPECT_EQ(after.world_size, 3);
  EXPECT_EQ(after.master_address, "10.0.0.1");
  EXPECT_EQ(after.master_port, 29500);
  EXPECT_EQ(after.store_port, 29501);
  EXPECT_EQ(after.hosts[0].workers[1].rank, 1);
  EXPECT_EQ(after.hosts[0].workers[1].local_rank, 1);
  EXPECT_EQ(after.hosts[1].name, "fake1");
  EXPECT_EQ(after.hosts[1].host_index, 2u);
  EXPECT_EQ(after.hosts[1].node_rank, 1);
}

class JobRecordFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivytest-record-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_.path = name;
    record_.set_build(std::string(build_name()));
    record_.set_job_id("0123");
    record_.set_token("secret");
    record_.mutable_options()->set_lease_ms(60'000);
  }
  void TearDown() override { std::filesystem::remove_all(directory_.path); }
  LauncherDirectory directory_;
  ctl::JobRecord record_;
};

TEST_F(JobRecordFileTest, IsPrivateAndDatedIntoTheFuture) {
  ASSERT_TRUE(write_job_record(directory_, record_).ok());
  struct stat status {};
  ASSERT_EQ(stat(directory_.record().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_GE(status.st_mtime, std::time(nullptr) + 60);
  EXPECT_EQ(read_job_record(directory_.record())->token(), "secret");
  record_.set_takeover(1);
  ASSERT_TRUE(write_job_record(directory_, record_).ok());
  EXPECT_EQ(read_job_record(directory_.record())->takeover(), 1u);
  EXPECT_NE(access((directory_.record() + ".new").c_str(), F_OK), 0);
}

TEST_F(JobRecordFileTest, RejectsARecordOfAnotherBuildOrATruncatedOne) {
  record_.set_build("another");
  ASSERT_TRUE(write_job_record(directory_, record_).ok());
  EXPECT_EQ(read_job_record(directory_.record()).error().code, Code::kFailedPrecondition);
  ASSERT_EQ(truncate(directory_.record().c_str(), 3), 0);
  EXPECT_EQ(read_job_record(directory_.record()).error().code, Code::kDataLoss);
  EXPECT_EQ(read_job_record(directory_.path + "/none").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ivy
