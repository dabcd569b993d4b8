// SPDX-License-Identifier: Apache-2.0
// The record of a job and its audit line. Method: tables of values and damaged texts.
#include <gtest/gtest.h>

#include "agent/daemon/jobs/agent_job_record.h"
#include "agent/node/roles/warden.h"
#include "agent/node/supervisor/supervisor.h"
#include "proto/wire/agent.pb.h"

namespace ivy::test {
namespace {

JobRecord example() {
  agent::v1::JobDescription job;
  job.set_user("al ice\n");
  job.add_hosts("node1");
  job.add_hosts("n,2");
  job.set_host_count(5);
  job.set_command_sha256(std::string(64, 'a'));
  return JobRecord{.job_id = std::string(32, '7'),
                   .host = 3,
                   .opened_at = 1'767'323'045,
                   .machine = "node3",
                   .boot_id = "boot",
                   .certificate = "user/alice serial 4f02",
                   .from = "10.77.0.1:41234",
                   .description = job.SerializeAsString()};
}

TEST(JobRecord, SurvivesARoundTrip) {
  JobRecord record = example();
  record.from = std::string("\0\n\\ \"\xff", 6);
  const Result<JobRecord> back = parse_job_record(encode_job_record(record));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->job_id, record.job_id);
  EXPECT_EQ(back->host, 3u);
  EXPECT_EQ(back->opened_at, record.opened_at);
  EXPECT_EQ(back->machine, "node3");
  EXPECT_EQ(back->boot_id, "boot");
  EXPECT_EQ(back->certificate, record.certificate);
  EXPECT_EQ(back->from, record.from);
  EXPECT_EQ(back->description, record.description);
}

TEST(JobRecord, DetectsEveryTruncation) {
  const std::string text = encode_job_record(example());
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(parse_job_record(text.substr(0, length)).ok()) << length;
}

TEST(JobRecord, RejectsGarbage) {
  const std::string text = encode_job_record(example());
  for (const std::string& bad : std::initializer_list<std::string>{
           std::string("x"), std::string(1000, '\0'), text + "more\n", text + text,
           "ivy-agent job 1\njob \\x\nend\n", "ivy-agent job 1\njob zz\nhost 0\nopened 0\nend\n",
           "ivy-agent job 1\nend\n", std::string(kMaxJobRecordBytes + 1, 'a')}) {
    const Result<JobRecord> parsed = parse_job_record(bad);
    ASSERT_FALSE(parsed.ok()) << bad.substr(0, 80);
    EXPECT_EQ(parsed.error().code, Code::kDataLoss);
  }
}

TEST(AuditLine, IsOneLineForAnyInput) {
  EXPECT_EQ(audit_line(example(), 1'767'323'105, "a worker \"failed\", twice"),
            "audit: job=77777777777777777777777777777777 host=3 "
            "certificate=user/alice\\x20serial\\x204f02 from=10.77.0.1:41234 user=al\\x20ice\\x0a "
            "hosts=node1,n\\x2c2,+3 command_sha256=" +
                std::string(64, 'a') +
                " opened=2026-01-02T03:04:05Z ended=2026-01-02T03:05:05Z "
                "outcome=\"a worker \\x22failed\\x22, twice\"");
}

TEST(AuditLine, NeedsNoDescription) {
  JobRecord record = example();
  record.description = "\xff\xff";
  EXPECT_NE(audit_line(record, 0, "x").find(" user= hosts= command_sha256= "), std::string::npos);
}

TEST(Outcome, HasATextForEveryCode) {
  EXPECT_EQ(outcome_of(kSupervisorOk), "all workers succeeded");
  EXPECT_EQ(outcome_of(kSupervisorWorkerFailed), "a worker failed");
  EXPECT_EQ(outcome_of(128 + 9), "the supervisor was killed by SIGKILL");
  EXPECT_EQ(outcome_of(77), "the supervisor failed with 77");
}

TEST(WardenRecord, SurvivesARoundTripOrIsRejected) {
  const WardenRecord running{.pid = 4711, .start_time = 123456789012, .exit_code = {}};
  const auto back = parse_warden_record(encode_warden_record(running));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->pid, 4711);
  EXPECT_EQ(back->start_time, 123456789012u);
  EXPECT_FALSE(back->exit_code);
  WardenRecord ended = running;
  ended.exit_code = 137;
  EXPECT_EQ(parse_warden_record(encode_warden_record(ended))->exit_code, 137);
  for (const char* bad : {"", "warden", "warden 12", "warden 12 34", "warden 1 5\n", "exit 3\n",
                          "warden x y\n", "warden -5 7\n"})
    EXPECT_FALSE(parse_warden_record(bad)) << bad;
}

}  // namespace
}  // namespace ivy::test
