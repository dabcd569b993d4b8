// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/remote_greeting.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using Kind = GreetingEvent::Kind;

// Returns the events in short, for instance "ready,bytes(abc)".
std::string describe_events(const std::vector<GreetingEvent>& events) {
  std::string text;
  for (const GreetingEvent& event : events) {
    if (!text.empty()) text += ",";
    switch (event.kind) {
      case Kind::kNeed:
        text += "need(" + event.text + ")";
        break;
      case Kind::kSend:
        text += "send(" + event.text + ")";
        break;
      case Kind::kReady:
        text += "ready";
        break;
      case Kind::kBytes:
        text += "bytes(" + event.text + ")";
        break;
      case Kind::kFail:
        text += "fail(" + event.text + ")";
        break;
      case Kind::kFlood:
        text += "flood(" + event.text + ")";
        break;
    }
  }
  return text;
}

// Feeds single bytes, and joins the pieces of the relay's bytes.
std::string feed_slowly(RemoteGreeting& greeting, std::string_view text) {
  std::vector<GreetingEvent> all;
  for (const char& byte : text) {
    for (GreetingEvent& event : greeting.feed(std::string_view(&byte, 1))) {
      if (event.kind == Kind::kBytes && !all.empty() && all.back().kind == Kind::kBytes) {
        all.back().text += event.text;
      } else {
        all.push_back(std::move(event));
      }
    }
  }
  return describe_events(all);
}

struct Case {
  const char* name;
  RemoteGreeting::Sender speaker;
  std::string text;
  std::string events;
};

class Greetings : public testing::TestWithParam<Case> {};

TEST_P(Greetings, AreParsedInOnePieceAndByteByByte) {
  RemoteGreeting at_once(GetParam().speaker);
  EXPECT_EQ(describe_events(at_once.feed(GetParam().text)), GetParam().events);
  RemoteGreeting slowly(GetParam().speaker);
  EXPECT_EQ(feed_slowly(slowly, GetParam().text), GetParam().events);
}

constexpr auto kShell = RemoteGreeting::Sender::kShell;
constexpr auto kRelay = RemoteGreeting::Sender::kRelay;

INSTANTIATE_TEST_SUITE_P(
    All, Greetings,
    testing::Values(
        Case{"Plain", kShell, "\x01ivy:ready\nabc", "ready,bytes(abc)"},
        Case{"Noise", kShell, "Welcome!\nYou have mail.\x01ivy:ready\nabc", "ready,bytes(abc)"},
        Case{"NoiseThatLooksAlike", kShell, "\x01iv\x01\x01ivy:what\n\x01ivy:ready\n", "ready"},
        Case{"Upload", kShell, "x\x01ivy:need x86_64\n\x01ivy:send 7\n\x01ivy:ready\nz",
             "need(x86_64),send(7),ready,bytes(z)"},
        Case{"TwoSends", kShell,
             "\x01ivy:need a\n\x01ivy:send 0\n\x01ivy:send 0\n\x01ivy:fail full\n",
             "need(a),send(0),send(0),fail(full)"},
        Case{"RelayFails", kShell, "\x01ivy:ready\n\x01ivy:fail no-such-job\n",
             "ready,fail(no-such-job)"},
        Case{"SessionPreambleIsNoFailure", kShell, "\x01ivy:ready\n\x01IVYLINK\x01",
             "ready,bytes(\x01IVYLINK\x01)"},
        Case{"MarkersBehindTheFirstByteArePayload", kShell, "\x01ivy:ready\nx\x01ivy:fail a\n",
             "ready,bytes(x\x01ivy:fail a\n)"},
        Case{"NoShell", kRelay, "\x01IVYLINK\x01", "bytes(\x01IVYLINK\x01)"},
        Case{"WardenFails", kRelay, "\x01ivy:fail disk full\n", "fail(disk full)"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(RemoteGreeting, KeepsTheLastNoiseOnly) {
  RemoteGreeting greeting(kShell);
  greeting.feed(std::string(100'000, 'a') + "the end\n");
  EXPECT_EQ(greeting.noise().size(), RemoteGreeting::kNoiseKeptBytes);
  EXPECT_TRUE(greeting.noise().ends_with("the end\n"));
}

TEST(RemoteGreeting, FailsOnEndlessNoise) {
  RemoteGreeting greeting(kShell);
  std::string events;
  for (int i = 0; i < 40 && events.empty(); ++i) {
    events = describe_events(greeting.feed(std::string(32 << 10, 'y') + "\n"));
  }
  EXPECT_TRUE(events.starts_with("flood(yyy")) << events;
}

TEST(LastLine, IsTheLastOneWithText) {
  EXPECT_EQ(last_line("a\nb c \r\n\n  \n"), "b c");
  EXPECT_EQ(last_line("  one"), "one");
  EXPECT_EQ(last_line("\n \n"), "");
}

}  // namespace
}  // namespace ivy
