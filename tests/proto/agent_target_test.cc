#include "proto/trust/agent_target.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(AgentTarget, IsReadStrictly) {
  const auto good = parse_agent_target("node2 [fe80::1%eth0]:7411");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->name, "node2");
  EXPECT_EQ(good->address, "fe80::1%eth0");
  EXPECT_EQ(good->port, 7411);
  EXPECT_EQ(parse_agent_target("a 10.0.0.1:1")->address, "10.0.0.1");
  for (const char* bad :
       {"", "node2", "node2 ", " 10.0.0.1:1", "n 10.0.0.1", "n 10.0.0.1:0", "n 10.0.0.1:65536",
        "n 10.0.0.1:x", "n fe80::1:7411", "n [10.0.0.1]:1", "n unix:/x:1", "n host:1", "n []:1"})
    EXPECT_FALSE(parse_agent_target(bad).ok()) << bad;
}

TEST(AgentTarget, WhatIsWrittenIsReadBack) {
  for (const char* text : {"node1 10.0.0.7:7411", "node1 [fd77::7]:7411", "n [fe80::1%eth0]:1"}) {
    const auto target = parse_agent_target(text);
    ASSERT_TRUE(target.ok()) << text;
    EXPECT_EQ(agent_target_text(*target), text);
  }
}

TEST(AgentTarget, AsGrpcWantsIt) {
  EXPECT_EQ(grpc_target("10.0.0.7", 7411), "ipv4:10.0.0.7:7411");
  EXPECT_EQ(grpc_target("fd77::7", 1), "ipv6:[fd77::7]:1");
  EXPECT_EQ(grpc_target("fe80::1%eth0", 7411), "ipv6:[fe80::1%25eth0]:7411");
}

}  // namespace
}  // namespace ivy
