// SPDX-License-Identifier: Apache-2.0
// --map-by: hosts and accelerators that are near each other get consecutive ranks.
#include "launcher/plan/topology_order.h"

#include <gtest/gtest.h>

#include "launcher/plan/plan.h"

namespace ivy {
namespace {

struct Network {
  explicit Network(std::vector<std::string> domains, MapChoice choice) {
    options.command = {"train"};
    options.map_by = choice;
    for (const std::string& domain : domains) {
      HostAnswer answer;
      answer.name = "n" + std::to_string(answers.size());
      answer.transport = Transport::kLocal;
      answer.facts.set_program_path("/train");
      answer.facts.set_reserved_port(1);
      answer.facts.set_accelerators(2);
      for (const char* pci_switch : {"0000:01:00.0", "0000:81:00.0"}) {
        Accelerator& device = *answer.facts.add_devices();
        device.set_mask_entry(std::to_string(answer.facts.devices_size() - 1));
        device.set_pci_switch(pci_switch);
        if (choice == MapChoice::kNvlink) device.set_fabric(domain);
      }
      if (choice == MapChoice::kSwitch) answer.facts.set_topology_address(domain);
      Host host;
      host.name = answer.name;
      options.hosts.push_back(host);
      answers.push_back(std::move(answer));
    }
  }
  // Returns the hosts in the order of ranks, for instance "n0 n2 n1".
  std::string hosts() {
    plan = make_plan(options, "job", answers, rejections).value();
    std::string text;
    int rank = 0;
    for (const PlannedHost& host : plan.hosts) {
      text += (text.empty() ? "" : " ") + host.name;
      EXPECT_EQ(host.workers.front().rank, rank);
      rank += static_cast<int>(host.workers.size());
    }
    return text;
  }

  Options options;
  std::vector<HostAnswer> answers;
  std::vector<Diagnostic> rejections;
  JobPlan plan;
};

TEST(TopologyOrderTest, KeepsHostsOfADomainTogether) {
  Network nvlink({"a/1", "b/0", "a/1", "b/0"}, MapChoice::kNvlink);
  EXPECT_EQ(nvlink.hosts(), "n0 n2 n1 n3");
  EXPECT_TRUE(nvlink.plan.warnings.empty());
  EXPECT_NE(plan_line(nvlink.plan).find("by NVLink domain"), std::string::npos);
  const std::string table = plan_table(nvlink.options, nvlink.plan, nvlink.answers);
  EXPECT_NE(table.find("NVLink domain"), std::string::npos) << table;
  EXPECT_NE(table.find("b/0"), std::string::npos) << table;
  nvlink.options.map_by = MapChoice::kHost;
  EXPECT_EQ(nvlink.hosts(), "n0 n1 n2 n3");
  Network cliques({"a/1", "a/2", "b/1", "a/1"}, MapChoice::kNvlink);
  EXPECT_EQ(cliques.hosts(), "n0 n3 n1 n2") << "cliques of a cluster are nearer than clusters";
}

TEST(TopologyOrderTest, FormsATreeOfSwitches) {
  Network tree({"core1.leaf1", "core2.leaf3", "core1.leaf2", "core2.leaf3", "core1.leaf1"},
               MapChoice::kSwitch);
  EXPECT_EQ(tree.hosts(), "n0 n4 n2 n1 n3");
  EXPECT_NE(plan_table(tree.options, tree.plan, tree.answers).find("core1.leaf2"),
            std::string::npos);
}

TEST(TopologyOrderTest, KeepsTheFirstHostAndTheGivenNumbers) {
  Network taken({"b/0", "a/0", "b/0", "a/0"}, MapChoice::kNvlink);
  taken.options.num_nodes = 3;
  EXPECT_EQ(taken.hosts(), "n0 n2 n1") << "the first three of -H";
}

TEST(TopologyOrderTest, PlacesUnknownHostsSeparately) {
  Network some({"a/0", "", "a/0", ""}, MapChoice::kNvlink);
  EXPECT_EQ(some.hosts(), "n0 n2 n1 n3");
  ASSERT_EQ(some.plan.warnings.size(), 1u);
  EXPECT_EQ(some.plan.warnings[0].id, "IVY-P028");
  EXPECT_EQ(some.plan.warnings[0].where, "n[1,3]");
  Network one({""}, MapChoice::kSwitch);
  EXPECT_EQ(one.hosts(), "n0");
  EXPECT_TRUE(one.plan.warnings.empty()) << "a single host has no neighbour";
}

TEST(TopologyOrderTest, KeepsAcceleratorsOfOneSwitchTogether) {
  HostFacts facts;
  for (const char* pci_switch : {"s1", "s2", "s1", "s2"})
    facts.add_devices()->set_pci_switch(pci_switch);
  Options options;
  std::vector<int> devices = {0, 1, 2, 3};
  order_devices(options, facts, devices);
  EXPECT_EQ(devices, (std::vector<int>{0, 1, 2, 3}));
  options.map_by = MapChoice::kSwitch;
  order_devices(options, facts, devices);
  EXPECT_EQ(devices, (std::vector<int>{0, 2, 1, 3}));
}

}  // namespace
}  // namespace ivy
