// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/cloud_notices.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

constexpr std::int64_t kNow = 1'796'000'000'000;

// Reads an answer to one of the cloud's requests.
Result<std::vector<CloudNotice>> answer(Cloud cloud, std::size_t request, int status,
                                        const std::string& body, const std::string& name = "") {
  return read_answer(cloud, poll_requests(cloud, "token").at(request), status, body, name, kNow);
}

TEST(CloudOf, RecognizesTheCloudsByTheirFirmware) {
  EXPECT_EQ(cloud_of("Amazon EC2\n", "p4d.24xlarge\n", "Amazon EC2\n"), Cloud::kAws);
  EXPECT_EQ(cloud_of("Google\n", "Google Compute Engine\n", "Google\n"), Cloud::kGcp);
  EXPECT_EQ(cloud_of("Microsoft Corporation\n", "Virtual Machine\n", "Microsoft Corporation\n"),
            Cloud::kAzure);
  EXPECT_EQ(cloud_of("QEMU", "Standard PC", ""), Cloud::kNone);
  EXPECT_EQ(cloud_of("", "", ""), Cloud::kNone);
}

TEST(CloudNotices, SendTheTokenOfAws) {
  for (const CloudRequest& request : poll_requests(Cloud::kAws, "secret")) {
    EXPECT_EQ(request.header, "X-aws-ec2-metadata-token");
    EXPECT_EQ(request.value, "secret");
  }
  EXPECT_TRUE(aws_token_request().is_put);
  EXPECT_TRUE(poll_requests(Cloud::kNone, "").empty());
}

TEST(CloudNotices, ReadAnInterruptionOfAws) {
  const auto notices =
      answer(Cloud::kAws, 0, 200, R"({"action": "terminate", "time": "2026-11-30T19:02:00Z"})");
  ASSERT_TRUE(notices.ok());
  ASSERT_EQ(notices->size(), 1u);
  EXPECT_EQ(notices->front().source, "AWS");
  EXPECT_EQ(notices->front().reason, "spot interruption");
  EXPECT_EQ(notices->front().deadline_ms, parse_utc_ms("2026-11-30T19:02:00Z"));
  EXPECT_EQ(answer(Cloud::kAws, 0, 200, R"({"action":"hibernate"})")->front().reason,
            "spot interruption: hibernate");
  EXPECT_TRUE(answer(Cloud::kAws, 0, 404, "<html>")->empty());
}

TEST(CloudNotices, ReadARebalanceRecommendationWithoutADeadline) {
  const auto notices = answer(Cloud::kAws, 1, 200, R"({"noticeTime": "2026-11-30T19:00:00Z"})");
  ASSERT_EQ(notices->size(), 1u);
  EXPECT_EQ(notices->front().reason, "rebalance recommendation");
  EXPECT_EQ(notices->front().deadline_ms, std::nullopt);
}

TEST(CloudNotices, ReadAPreemptionOfGoogleCloud) {
  EXPECT_TRUE(answer(Cloud::kGcp, 0, 200, "FALSE")->empty());
  const auto notices = answer(Cloud::kGcp, 0, 200, "TRUE\n");
  ASSERT_EQ(notices->size(), 1u);
  EXPECT_EQ(notices->front().reason, "preemption");
  EXPECT_EQ(notices->front().deadline_ms, kNow + 30'000);
}

TEST(CloudNotices, IgnoreALiveMigration) {
  EXPECT_TRUE(answer(Cloud::kGcp, 1, 200, "NONE")->empty());
  EXPECT_TRUE(answer(Cloud::kGcp, 1, 200, "MIGRATE_ON_HOST_MAINTENANCE")->empty());
  EXPECT_EQ(answer(Cloud::kGcp, 1, 200, "TERMINATE_ON_HOST_MAINTENANCE")->front().reason,
            "host maintenance");
  EXPECT_TRUE(answer(Cloud::kAzure, 0, 200,
                     R"({"Events":[{"EventType":"Freeze","Resources":["vm1"]}]})", "vm1")
                  ->empty());
}

TEST(CloudNotices, ReadTheEventsOfThisMachineFromAzure) {
  const std::string body = R"({"DocumentIncarnation": 3, "Events": [
      {"EventId": "a", "EventType": "Preempt", "ResourceType": "VirtualMachine",
       "Resources": ["vm1"], "EventStatus": "Scheduled",
       "NotBefore": "Mon, 30 Nov 2026 19:00:30 GMT"},
      {"EventId": "b", "EventType": "Reboot", "Resources": ["vm2"], "EventStatus": "Started",
       "NotBefore": ""}, 7]})";
  const auto first = answer(Cloud::kAzure, 0, 200, body, "vm1");
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->size(), 1u);
  EXPECT_EQ(first->front().reason, "spot eviction");
  EXPECT_EQ(first->front().deadline_ms, parse_utc_ms("2026-11-30T19:00:30Z"));
  const auto second = answer(Cloud::kAzure, 0, 200, body, "vm2");
  ASSERT_EQ(second->size(), 1u);
  EXPECT_EQ(second->front().reason, "reboot");
  EXPECT_EQ(second->front().deadline_ms, kNow) << "the event has begun";
  EXPECT_TRUE(answer(Cloud::kAzure, 0, 200, body, "vm3")->empty());
  EXPECT_TRUE(answer(Cloud::kAzure, 0, 200, R"({"Events":[]})")->empty());
}

TEST(CloudNotices, RejectAnswersOfSomethingElse) {
  for (const char* const body : {"", "<html>", "[]", "{", "{\"Events\": 3}"})
    EXPECT_FALSE(answer(Cloud::kAzure, 0, 200, body).ok()) << body;
  for (const char* const body : {"", "<html>", "[1]"})
    EXPECT_FALSE(answer(Cloud::kAws, 0, 200, body).ok()) << body;
  for (const Cloud cloud : {Cloud::kAws, Cloud::kGcp, Cloud::kAzure})
    EXPECT_FALSE(answer(cloud, 0, 503, "{}").ok());
  EXPECT_FALSE(answer(Cloud::kAws, 0, 401, "").ok()) << "an expired token";
}

TEST(NoticeChanges, ReportEachNoticeOnceAndItsEnd) {
  NoticeChanges changes;
  const CloudNotice spot{"AWS", "spot interruption", 1};
  const CloudNotice advice{"AWS", "rebalance recommendation"};
  EXPECT_EQ(changes.take({spot}).added.size(), 1u);
  EXPECT_TRUE(changes.take({spot}).added.empty());
  const NoticeChanges::Changes both = changes.take({spot, advice, advice});
  ASSERT_EQ(both.added.size(), 1u);
  EXPECT_EQ(both.added.front().reason, "rebalance recommendation");
  const NoticeChanges::Changes end = changes.take({advice});
  ASSERT_EQ(end.withdrawn.size(), 1u);
  EXPECT_EQ(end.withdrawn.front().reason, "spot interruption");
}

TEST(ParseUtc, ReadsBothForms) {
  EXPECT_EQ(parse_utc_ms("1970-01-02T00:00:01Z"), 86'401'000);
  EXPECT_EQ(parse_utc_ms("Fri, 02 Jan 1970 00:00:01 GMT"), 86'401'000);
  EXPECT_EQ(parse_utc_ms("soon"), std::nullopt);
  EXPECT_EQ(parse_utc_ms(""), std::nullopt);
}

}  // namespace
}  // namespace ivy
