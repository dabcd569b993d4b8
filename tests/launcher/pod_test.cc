// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/pod.h"

#include <gtest/gtest.h>

#include "launcher/options/options.h"

namespace ivy {
namespace {

// As the kubelet writes it.
constexpr const char* kHosts =
    "# Kubernetes-managed hosts file.\n"
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "10.1.0.12\ttrain-2.train.default.svc.cluster.local\ttrain-2\n"
    "\n# Entries added by HostAliases.\n"
    "10.9.9.9\ttrain-2.elsewhere\n";

Environment pod(const std::string& index) {
  return {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"JOB_COMPLETION_INDEX", index}};
}

IndexedPod indexed(const std::string& host_name, const std::string& hosts_file = kHosts,
                   const std::string& index = "2") {
  return pod_facts(pod(index), {host_name, hosts_file, 1, 0})
      .indexed.value_or(IndexedPod{.index = -1});
}

TEST(Pod, KnowsItsPlaceInAnIndexedJob) {
  const IndexedPod found = indexed("train-2");
  EXPECT_EQ(found.index, 2);
  EXPECT_EQ(found.own_name, "train-2.train.default.svc.cluster.local");
  EXPECT_EQ(found.first_name, "train-0.train.default.svc.cluster.local");
  // The job of a JobSet, with setHostnameAsFQDN.
  EXPECT_EQ(indexed("set-workers-0-2.set.ns.svc.cluster.local").first_name,
            "set-workers-0-0.set.ns.svc.cluster.local");
}

TEST(Pod, ReportsWhyTheNameOfTheFirstPodIsUnknown) {
  EXPECT_EQ(indexed("gpu-node-7").why_unknown, "its host name gpu-node-7 does not end with -2");
  EXPECT_EQ(indexed("-2").why_unknown, "its host name -2 does not end with -2");
  EXPECT_EQ(indexed("train-2", "10.1.0.12 train-2\n").why_unknown,
            "/etc/hosts has no name of train-2 in a subdomain");
  EXPECT_EQ(indexed("train-2", "# 10.1.0.12 train-2.train train-2\n").own_name, "");
}

TEST(Pod, TakesOnlyANumberAsIndex) {
  for (const char* index : {"", "x", "-1", "2 "})
    EXPECT_EQ(indexed("train-2", kHosts, index).index, -1);
  EXPECT_FALSE(may_be_pod({}));
  EXPECT_TRUE(may_be_pod(pod("0")));
}

TEST(Pod, IsTheMainProgramBelowTheFirstProcess) {
  const auto is_main = [](const Environment& environment, int pid, int parent) {
    return pod_facts(environment, {"train-2", kHosts, pid, parent}).is_main_program;
  };
  EXPECT_TRUE(is_main(pod("2"), 1, 0));
  EXPECT_TRUE(is_main(pod("2"), 7, 1));
  EXPECT_FALSE(is_main(pod("2"), 70, 0)) << "kubectl exec";
  EXPECT_FALSE(is_main(pod("2"), 71, 70));
  EXPECT_FALSE(is_main({{"JOB_COMPLETION_INDEX", "2"}}, 7, 1)) << "a service of systemd";
}

using Words = std::vector<std::string>;

Result<ParsedCommandLine> parse(const Words& words, const std::string& host_name = "train-2",
                                const Environment& more = {}) {
  Environment environment = pod("2");
  environment.insert(environment.end(), more.begin(), more.end());
  return parse_command_line(words, environment, read_hostfile,
                            pod_facts(environment, {host_name, kHosts, 1, 0}));
}

TEST(PodOptions, MakeAPodANodeOfTorchrunMode) {
  for (const auto& parsed : {parse({"--nnodes", "4", "train.py"}),
                             parse({"train.py"}, "train-2", {{"IVY_NNODES", "4"}})}) {
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->options.node_rank, 2);
    EXPECT_EQ(parsed->options.join_address, "train-0.train.default.svc.cluster.local");
    EXPECT_TRUE(parsed->options.notes.empty());
    EXPECT_TRUE(parsed->options.in_pod);
  }
}

TEST(PodOptions, PreferFlagsToThePod) {
  const auto typed =
      parse({"--nnodes", "4", "--node-rank", "3", "--master-addr", "h0", "train.py"});
  EXPECT_EQ(typed->options.node_rank, 3);
  EXPECT_EQ(typed->options.join_address, "h0");
  EXPECT_EQ(parse({"--nnodes", "4", "--master-addr", "h0", "x"}, "node7")->options.join_address,
            "h0");
  for (const Words& words :
       {Words{"-H", "a,b", "x"}, Words{"--hosts-from", "hosts", "x"}, Words{"--nnodes", "1", "x"},
        Words{"--transport", "local", "x"}, Words{"--fake-hosts", "2", "--nnodes", "2", "x"}}) {
    const auto parsed = parse(words);
    ASSERT_TRUE(parsed.ok()) << words.front() << parsed.error().message;
    EXPECT_FALSE(parsed->options.node_rank) << words.front();
  }
}

TEST(PodOptions, RequireTheNumberOfPodsWithNames) {
  const auto unknown = parse({"train.py"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("this is pod 2 of an Indexed Job"), std::string::npos);
  EXPECT_NE(unknown.error().fix.find("IVY_NNODES"), std::string::npos);
  EXPECT_TRUE(parse({"train.py"}, "node7").ok()) << "pods that cannot find each other work alone";
}

TEST(PodOptions, RejectAPodWithoutAWayToNode0) {
  const auto nameless = parse({"--nnodes", "4", "train.py"}, "node7");
  ASSERT_FALSE(nameless.ok());
  EXPECT_NE(nameless.error().message.find("node7 does not end with -2"), std::string::npos);
  EXPECT_NE(nameless.error().fix.find("headless service"), std::string::npos);
  const auto too_few = parse({"--nnodes", "2", "train.py"});
  ASSERT_FALSE(too_few.ok());
  EXPECT_NE(too_few.error().message.find("JOB_COMPLETION_INDEX 2, but --nnodes 2 has nodes 0 to 1"),
            std::string::npos)
      << too_few.error().message;
}

TEST(PodOptions, TakeTheGracePeriodFromStopBeforeEnd) {
  EXPECT_TRUE(parse({"--nnodes", "4", "--stop-before-end", "60s", "x"}).ok());
  EXPECT_FALSE(parse({"--nnodes", "4", "--requeue", "x"}).ok());
}

}  // namespace
}  // namespace ivy
