// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/dial_wire.h"

#include <gtest/gtest.h>

namespace ivy::test {
namespace {

DialOrder an_order() {
  DialOrder order;
  order.job_id = "0123456789abcdef0123456789abcdef";
  order.key = std::string("\x00\xff\x7f", 3) + std::string(kDialKeyBytes - 3, 'k');
  order.silence = std::chrono::milliseconds(2500);
  order.addresses = {{"10.77.0.1", 41234}, {"fd77::1", 65535}};
  order.hosts = {"node1", "gpu-a-02", "n3.cluster.example"};
  return order;
}

TEST(DialWire, AnOrderSurvivesARoundTrip) {
  const DialOrder order = an_order();
  const Result<DialOrder> read = parse_dial_order(encode_dial_order(order));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->job_id, order.job_id);
  EXPECT_EQ(read->key, order.key);
  EXPECT_EQ(read->silence, order.silence);
  EXPECT_EQ(read->addresses, order.addresses);
  EXPECT_EQ(read->hosts, order.hosts);
}

TEST(DialWire, AnOrderCanNameItsHost) {
  DialOrder order = an_order();
  order.self = 2;
  const Result<DialOrder> read = parse_dial_order(encode_dial_order(order));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->self, order.self);
  order.self = 3;
  EXPECT_FALSE(parse_dial_order(encode_dial_order(order)).ok());
}

TEST(DialWire, AnotherIvyrunGreetsWithItsRank) {
  DialGreeting greeting;
  greeting.kind = DialGreeting::Kind::kJoin;
  greeting.host = 41;
  const std::string line = encode_dial_greeting(greeting);
  const Result<DialGreeting> read = parse_dial_greeting(line.substr(0, line.size() - 1));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->kind, DialGreeting::Kind::kJoin);
  EXPECT_EQ(read->host, 41u);
  EXPECT_FALSE(parse_dial_greeting("IVYJOIN 1 41 x").ok());
}

TEST(DialWire, LimitsTheAddressesOfAnOrder) {
  DialOrder order = an_order();
  order.addresses.assign(kDialAddressesMax + 5, {"10.0.0.1", 1});
  const Result<DialOrder> read = parse_dial_order(encode_dial_order(order));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->addresses.size(), kDialAddressesMax);
}

TEST(DialWire, RejectsUnknownLineWithoutPrintingTheKey) {
  const std::string good = encode_dial_order(an_order());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const struct {
    std::string text;
    std::string printed;
  } cases[] = {
      {"", "incomplete"},
      {"end\n", "line 1"},
      {with("IVYDIAL 1", "IVYDIAL 2"), "line 1"},
      {with("job 0123", "job 012g"), "line 2"},
      {with("key 00ff", "key 00f"), "line 3"},
      {with("silence 2500", "silence 0"), "line 4"},
      {with("silence 2500", "silence 2500x"), "line 4"},
      {with(" 41234", " 0"), "line 5"},
      {with(" 41234", " 65536"), "line 5"},
      {with("host node1", "host "), "line 7"},
      {with("host node1", "guest node1"), "line 7"},
      {with("address 10.77.0.1 41234\naddress fd77::1 65535\n", ""), "incomplete"},
  };
  for (const auto& each : cases) {
    const Result<DialOrder> read = parse_dial_order(each.text);
    ASSERT_FALSE(read.ok()) << each.text;
    EXPECT_NE(read.error().message.find(each.printed), std::string::npos) << read.error().message;
    EXPECT_EQ(read.error().message.find("kkk"), std::string::npos);
    EXPECT_EQ(read.error().message.find("6b6b"), std::string::npos);
  }
}

TEST(DialWire, GreetingsSurviveARoundTrip) {
  DialGreeting transport;
  transport.host = 4095;
  EXPECT_EQ(encode_dial_greeting(transport), "IVYDIAL 1 4095\n");
  DialGreeting signal;
  signal.kind = DialGreeting::Kind::kSignal;
  signal.host = 7;
  signal.signal = 10;
  signal.whole_tree = true;
  EXPECT_EQ(encode_dial_greeting(signal), "IVYSIGNAL 1 7 10 tree\n");
  const Result<DialGreeting> read = parse_dial_greeting("IVYSIGNAL 1 7 10 tree");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->kind, DialGreeting::Kind::kSignal);
  EXPECT_EQ(read->host, 7u);
  EXPECT_EQ(read->signal, 10);
  EXPECT_TRUE(read->whole_tree);
  const Result<DialGreeting> tasks = parse_dial_greeting("IVYSIGNAL 1 0 15 tasks");
  ASSERT_TRUE(tasks.ok());
  EXPECT_FALSE(tasks->whole_tree);
}

TEST(DialWire, RejectsInvalidGreetings) {
  for (const char* const line :
       {"", "IVYDIAL 1", "IVYDIAL 1 ", "IVYDIAL 1 x", "IVYDIAL 1 -1", "IVYDIAL 1 1 2",
        "IVYDIAL 2 1", "IVYDIAL 1 99999999999", "IVYSIGNAL 1 1", "IVYSIGNAL 1 1 0 tree",
        "IVYSIGNAL 1 1 65 tree", "IVYSIGNAL 1 1 10", "IVYSIGNAL 1 1 10 all", "GET / HTTP/1.1"}) {
    EXPECT_FALSE(parse_dial_greeting(line).ok()) << line;
  }
}

}  // namespace
}  // namespace ivy::test
