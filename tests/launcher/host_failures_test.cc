// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/host_failures.h"

#include <gtest/gtest.h>

#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

using std::chrono::seconds;

TEST(WaitingLineTest, FoldsHostsThatDoTheSame) {
  const std::string line = waiting_line(29, 32, seconds(12),
                                        {{"node07", "ssh: connecting"},
                                         {"node19", "ssh: connecting"},
                                         {"node31", "sending ivy-node"}});
  EXPECT_EQ(line,
            "hosts 29/32 up after 12 s, waiting for node31 (sending ivy-node), node[07,19] "
            "(ssh: connecting)");
}

TEST(WaitingLineTest, FoldsUploads) {
  EXPECT_EQ(
      waiting_line(0, 4, seconds(3),
                   {{"node1", sending_step("sending ivy-node", UploadState{42, "5 MiB", 1.3})},
                    {"node2", sending_step("sending ivy-node", UploadState{7, "5 MiB", 0.5})},
                    {"node3", sending_step("sending ivy-node", UploadState{50, "5 MiB"})},
                    {"node4", sending_step("agent: sending ivy-node", UploadState{9, "5 MiB"})}}),
      "hosts 0/4 up after 3 s, waiting for node4 (agent: sending ivy-node (9 % of 5 MiB)), "
      "node[1-3] (sending ivy-node (7-50 % of 5 MiB, 1.8 MB/s))");
}

TEST(WaitingLineTest, WritesAtMostFourGroups) {
  std::vector<WaitingHost> waiting;
  for (int i = 0; i < 6; ++i)
    waiting.push_back({"h" + std::to_string(i), "doing" + std::to_string(i)});
  const std::string line = waiting_line(0, 6, seconds(5), waiting);
  EXPECT_NE(line.find("h3"), std::string::npos);
  EXPECT_EQ(line.find("h4"), std::string::npos);
  EXPECT_TRUE(line.ends_with(", ...")) << line;
}

TEST(WaitingLineTest, OmitsUnknownActivity) {
  EXPECT_EQ(waiting_line(1, 2, seconds(7), {{"a", ""}}), "hosts 1/2 up after 7 s, waiting for a");
}

TEST(HostFailuresTest, NamesHostsThatFailAlikeInOneMessage) {
  const auto refused = [](const std::string& name, const std::string& address) {
    return FailedHost{
        name, {LinkFailure::kRefused, name + " (" + address + "): Connection refused", "fix"}};
  };
  const std::vector<Diagnostic> printed =
      host_failures({refused("node07", "10.0.0.7"),
                     {"node08", {LinkFailure::kAuthentication, "no key of yours is accepted", ""}},
                     refused("node09", "fd77::9")},
                    4, " in time");
  ASSERT_EQ(printed.size(), 2u);
  EXPECT_EQ(printed[0].what, "2 of 4 hosts could not be reached in time");
  EXPECT_EQ(printed[0].where, "node[07,09], connecting");
  EXPECT_EQ(printed[0].cause, "node07 (10.0.0.7): Connection refused");
  EXPECT_EQ(printed[1].what, "1 of 4 hosts could not be reached in time");
  EXPECT_EQ(printed[1].where, "node08, logging in");
  EXPECT_EQ(printed[1].exit_code, kExitHostsNotUp);
}

// The text by which messages are compared, "connect to its address port 2222", must not be printed.
TEST(HostFailuresTest, ShowsTheFirstHostsMessageForAGroup) {
  const auto refused = [](const std::string& name, const std::string& address) {
    return FailedHost{
        name,
        {LinkFailure::kRefused, "connect to " + address + " port 2222: Connection refused", "fix"}};
  };
  const std::vector<Diagnostic> printed =
      host_failures({refused("node07", "10.0.0.7"), refused("node09", "10.0.0.9")}, 2, "");
  ASSERT_EQ(printed.size(), 1u);
  EXPECT_EQ(printed[0].where, "node[07,09], connecting");
  EXPECT_EQ(printed[0].cause, "node07: connect to 10.0.0.7 port 2222: Connection refused");
}

}  // namespace
}  // namespace ivy
