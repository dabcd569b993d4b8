// SPDX-License-Identifier: Apache-2.0
// Notifications of the links of a srun step.
#include "launcher/links/srun/step_hosts.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

// A link that records its notifications.
struct FakeLink final : StepClient {
  void host_connected(std::shared_ptr<DialBackStream>) override { reported += "came "; }
  void host_reconnected() override { reported += "again "; }
  void host_failed(const LinkDown& down) override {
    reported += "failed:" + down.message.line() + " ";
  }
  void host_progress(const LinkStep& step) override { reported += step.text.line() + " "; }

  std::string reported;
};

const LinkDown kLost{LinkFailure::kNoSuchJob, "killed", ""};

TEST(StepHosts, NotifiesOnlyWaitingLinks) {
  StepHosts hosts;
  FakeLink first, second;
  hosts.add(0, "node1", first);
  hosts.add(1, "node2", second);
  hosts.progress("soon");
  hosts.deliver(0, nullptr);
  hosts.progress("later");
  EXPECT_EQ(first.reported, "soon came ");
  EXPECT_EQ(second.reported, "soon later ");
  ASSERT_EQ(hosts.missing().size(), 1u);
  EXPECT_EQ(hosts.missing().front()->name, "node2");
  EXPECT_EQ(hosts.names(), (std::vector<std::string>{"node1", "node2"}));
}

TEST(StepHosts, DoesNotNotifyARemovedLink) {
  StepHosts hosts;
  FakeLink link;
  hosts.add(0, "node1", link);
  hosts.remove(0, link);
  hosts.remove(7, link);
  hosts.lose_all(kLost);
  hosts.progress("soon");
  EXPECT_EQ(link.reported, "");
}

TEST(StepHosts, ReportsASecondConnectionToTheSameLink) {
  StepHosts hosts;
  FakeLink link;
  hosts.add(0, "node1", link);
  hosts.deliver(0, nullptr);
  hosts.deliver(0, nullptr);
  EXPECT_EQ(link.reported, "came again ");
}

TEST(StepHosts, ReportsALostHostToALateLink) {
  StepHosts hosts;
  FakeLink early, late;
  hosts.add(0, "node1", early);
  ASSERT_NE(hosts.find("node1"), nullptr);
  EXPECT_EQ(hosts.find("node9"), nullptr);
  hosts.lose(*hosts.find("node1"), kLost);
  hosts.add(0, "node1", late);
  hosts.serve(0);
  EXPECT_EQ(early.reported, "failed:killed ");
  EXPECT_EQ(late.reported, "failed:killed ");
}

TEST(StepHosts, ForgetsTheOutputOfAHostWhenItConnects) {
  StepHosts hosts;
  FakeLink link;
  hosts.add(0, "node1", link);
  hosts.find("node1")->words = "cannot connect: Connection refused";
  hosts.deliver(0, nullptr);
  EXPECT_EQ(hosts.find("node1")->words, "");
}

}  // namespace
}  // namespace ivy
