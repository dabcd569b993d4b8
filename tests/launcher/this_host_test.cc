// SPDX-License-Identifier: Apache-2.0
// Which names are this machine's.
#include "launcher/links/this_host.h"

#include <gtest/gtest.h>

#include <map>

namespace ivy {
namespace {

TEST(ThisHost, FindsItsNamesInAHostsFile) {
  std::map<std::string, int> asked;
  const auto is_own = [&](const std::string& address) {
    ++asked[address];
    return address == "10.0.0.1" || address == "fe80::1%eth0";
  };
  const std::set<std::string> names = own_names(
      "127.0.0.1 localhost\n10.0.0.1\tNode1.cluster node1 # node9\n#10.0.0.1 node8\n\n"
      "10.0.0.2 node2 node1x\n10.0.0.1 alias\nfe80::1%eth0 link\n10.0.0.1",
      is_own);
  EXPECT_EQ(names, (std::set<std::string>{"alias", "link", "node1", "node1.cluster"}));
  EXPECT_EQ(asked["10.0.0.1"], 1);
}

}  // namespace
}  // namespace ivy
