// SPDX-License-Identifier: Apache-2.0
// The text that reports which clients wait for which others.
#include "rendezvous/engine/explanation.h"

#include <gtest/gtest.h>

#include "proto/contract/text.h"
#include "rendezvous/engine/shown_text.h"
#include "tests/rendezvous/engine_fixture.h"

namespace ivy::store {
namespace {

using test::EngineScript;

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(ExplanationTest, NamesKeysWaitersAndSilentClients) {
  EngineScript script;
  const ClientId first = script.join(0);
  const ClientId second = script.join(1);
  const ClientId late = script.join(2);
  EXPECT_EQ(explain(script.engine.wait_graph(), script.now_ns), "store: no blocked requests");
  script.ask(late, Set{"stage", "1"});
  script.now_ns += 10 * kSecond;
  script.ask(first, Get{"id", kNever});
  script.now_ns += 31 * kSecond;
  script.ask(second, Wait{{"id", "stage"}, kNever});
  script.now_ns += kSecond / 10;
  EXPECT_EQ(explain(script.engine.wait_graph(), script.now_ns),
            "key 'id': rank 0, rank 1 have waited, the longest for 31.1 s; not waiting for it: "
            "rank 2 (silent for 41.1 s, last: set stage)");
}

TEST(ExplanationTest, NamesTheMembersOfABarrier) {
  EngineScript script;
  script.ask(script.join(4), Barrier{"start", 3, 1, 0, kNever});
  script.now_ns += 2 * kSecond;
  EXPECT_EQ(
      explain(script.engine.wait_graph(), script.now_ns),
      "barrier 'start' of 3: rank 4 has waited for 2.0 s; these members have not arrived: 0, 2");
}

TEST(ExplanationTest, CountsUnnamedClients) {
  EngineScript script;
  script.ask(script.join(0), Barrier{"big", 1000, 0, 0, kNever});
  EXPECT_NE(explain(script.engine.wait_graph(), script.now_ns).find("7, 8 and 991 more"),
            std::string::npos)
      << explain(script.engine.wait_graph(), script.now_ns);
  const ClientId busy = script.join(1);
  for (int i = 0; i < 100; ++i) script.ask(busy, Get{"k" + std::to_string(i), kNever});
  const std::string text = explain(script.engine.wait_graph(), script.now_ns);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 63);
  EXPECT_TRUE(text.ends_with("and 38 more")) << text.substr(text.size() - 80);
}

TEST(ExplanationTest, NamesClientsWithoutARankByProcess) {
  EngineScript script;
  const ClientId torch = script.join(std::nullopt, Space::kTorch);
  script.engine.describe(torch, 4321);
  script.ask(torch, Wait{{"/default_pg/0//cuda//0"}, kNever});
  // Another connection of the same process.
  script.engine.describe(script.join(std::nullopt, Space::kTorch), 4321);
  EXPECT_EQ(explain(script.engine.wait_graph(), script.now_ns),
            "key '/default_pg/0//cuda//0': pid 4321 at 10.0.0.1 has waited for 0.0 s; all "
            "connected clients are blocked on it");
}

TEST(ExplanationTest, OmitsTheRequestingClient) {
  EngineScript script;
  const ClientId asker = script.join(std::nullopt);
  EXPECT_EQ(explain(script.engine.wait_graph(asker), script.now_ns),
            "store: no blocked requests (no clients connected)");
  script.ask(script.join(0), Wait{{"id"}, kNever});
  EXPECT_EQ(explain(script.engine.wait_graph(asker), script.now_ns),
            "key 'id': rank 0 has waited for 0.0 s; all connected clients are blocked on it");
  script.ask(asker, Set{"other", "1"});
  EXPECT_NE(explain(script.engine.wait_graph(asker), script.now_ns).find("last: set other"),
            std::string::npos);
}

TEST(ExplanationTest, EscapesTerminalCommands) {
  EXPECT_EQ(shown_key("a\x1b]0;x\x07\n\xc2\x9b"), "a?]0;x????");
  EXPECT_EQ(shown_key(std::string(200, 'k')), std::string(120, 'k') + "...");
  EXPECT_EQ(tenths_text(0), "0.0 s");
  EXPECT_EQ(tenths_text(41'340'000'000), "41.3 s");
}

}  // namespace
}  // namespace ivy::store
