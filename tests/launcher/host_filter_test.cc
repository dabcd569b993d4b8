// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/host_filter.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

std::vector<Host> hosts_of(const std::string& text) { return *parse_host_list(text, "-H"); }

// Returns for instance "a:2=0,2 b -1": name, slots, the only devices, excluded devices.
std::string shown(const Result<std::vector<Host>>& hosts) {
  if (!hosts.ok()) return "error " + hosts.error().message;
  std::string text;
  for (const Host& host : *hosts) {
    text += (text.empty() ? "" : " ") + host.name;
    if (host.slots) text += ":" + std::to_string(*host.slots);
    std::string sign = "=";
    for (const int device : host.only_devices)
      text += std::exchange(sign, ",") + std::to_string(device);
    sign = "-";
    for (const int device : host.excluded_devices)
      text += std::exchange(sign, ",") + std::to_string(device);
  }
  return text;
}

std::string included(const std::string& filter, const std::string& hosts) {
  const auto picks = parse_host_filter(filter);
  if (!picks.ok()) return "error " + picks.error().message;
  return shown(included_hosts(*picks, hosts_of(hosts)));
}

std::string excluded(const std::string& filter, const std::string& hosts) {
  const auto picks = parse_host_filter(filter);
  if (!picks.ok()) return "error " + picks.error().message;
  return shown(hosts_without(*picks, hosts_of(hosts)));
}

TEST(HostFilter, IncludesInTheOrderOfTheList) {
  EXPECT_EQ(included("b@a", "a,b,c"), "a b");
  EXPECT_EQ(included("n[2-3]", "n[1-4]:2"), "n2:2 n3:2");
  EXPECT_EQ(included("n[1,3],x", "x,n[1-4]"), "x n1 n3");
  EXPECT_EQ(included("[::1]", "[::1],a"), "::1");
}

TEST(HostFilter, IncludesDevicesInDeepSpeedSyntax) {
  EXPECT_EQ(included("a@b:0,2", "a:4,b:4"), "a:4 b:2=0,2");
  EXPECT_EQ(included("b:2,0", "a,b"), "b:2=0,2");
  EXPECT_EQ(included("a:0-2,b:1", "a:4,b:4"), "a:3=0,1,2 b:1=1");
  EXPECT_EQ(included("n[1-2]:0", "n[1-3]:8"), "n1:1=0 n2:1=0");
  EXPECT_EQ(included("a:0@a:1", "a"), "a:2=0,1");
  EXPECT_EQ(included("[::1]:1", "[::1]:2"), "::1:1=1");
}

TEST(HostFilter, ExcludesHostsAndDevices) {
  EXPECT_EQ(excluded("b", "a,b,c"), "a c");
  EXPECT_EQ(excluded("a:0@c", "a:4,b,c"), "a:3=1,2,3 b");
  EXPECT_EQ(excluded("a:0", "a"), "a-0");
  EXPECT_EQ(excluded("a:0-3", "a:4,b"), "b");
}

TEST(HostFilter, RejectsInvalidFilters) {
  EXPECT_EQ(included("d,e", "a,b"), "error d,e are not in the list of hosts (a,b)");
  EXPECT_EQ(included("a:4", "a:4"), "error a has no slot 4: it has 4 slots");
  EXPECT_EQ(excluded("a,b", "a,b"), "error the filter leaves no hosts");
  for (const char* text : {"", "a@", "a:x", "a:3-1", "a:-1", "a[", ",a", "a:"})
    EXPECT_FALSE(parse_host_filter(text).ok()) << text;
}

}  // namespace
}  // namespace ivy
