// SPDX-License-Identifier: Apache-2.0
// The engine's rules, request by request.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/rendezvous/engine_fixture.h"

namespace ivy::store {
namespace {

using test::EngineScript;

constexpr std::uint64_t kSecond = 1'000'000'000;

std::string text(std::size_t bytes) { return std::string(bytes, 'x'); }

struct Step {
  Request request;
  std::string answer;
};

void run(const std::vector<Step>& steps, EngineLimits limits = {}) {
  EngineScript script(limits);
  const ClientId client = script.join(0);
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(script.answer(client, steps[i].request), steps[i].answer) << "step " << i;
}

TEST(EngineTest, SetsAndGetsBytes) {
  const std::string binary("\0\xff\n", 3);
  run({{Get{"a", {}}, "!5"},
       {Set{"a", binary}, "done"},
       {Get{"a", {}}, "=" + binary},
       {Set{"a", ""}, "done"},
       {Get{"a", {}}, "="},
       {Set{"", "empty key"}, "done"},
       {Get{"", {}}, "=empty key"}});
}

TEST(EngineTest, SetOnceRejectsOnlyAnotherValue) {
  run({{Set{"a", "1", true}, "done"},
       {Set{"a", "1", true}, "done"},
       {Set{"a", "2", true}, "!6"},
       {Get{"a", {}}, "=1"}});
}

TEST(EngineTest, AddsNumbersAsText) {
  run({{Add{"n", 3}, "#3"},
       {Get{"n", {}}, "=3"},
       {Add{"n", -5}, "#-2"},
       {Set{"n", "40"}, "done"},
       {Add{"n", 2}, "#42"},
       {Set{"n", "forty"}, "done"},
       {Add{"n", 1}, "!3"},
       {Get{"n", {}}, "=forty"},
       {Set{"n", ""}, "done"},
       {Add{"n", 1}, "!3"},
       {Set{"n", " 1"}, "done"},
       {Add{"n", 1}, "!3"},
       {Set{"n", "9223372036854775807"}, "done"},
       {Add{"n", 1}, "!3"},
       {Add{"n", 0}, "#9223372036854775807"},
       {Set{"n", "9223372036854775808"}, "done"},
       {Add{"n", 0}, "!3"}});
}

TEST(EngineTest, ComparesAndSets) {
  run({{CompareSet{"a", "x", "1"}, "kept=(missing)"},
       {Check{{"a"}}, "#0"},
       {CompareSet{"a", {}, "1"}, "stored=1"},
       {CompareSet{"a", {}, "2"}, "kept=1"},
       {CompareSet{"a", "0", "2"}, "kept=1"},
       {CompareSet{"a", "1", "2"}, "stored=2"},
       {Get{"a", {}}, "=2"}});
}

TEST(EngineTest, AppendsAndDeletes) {
  run({{Append{"a", "12"}, "#2"},
       {Append{"a", "345"}, "#5"},
       {Get{"a", {}}, "=12345"},
       {Delete{"a"}, "#1"},
       {Delete{"a"}, "#0"},
       {Check{{"a"}}, "#0"}});
}

TEST(EngineTest, SetsManyKeysAtomically) {
  run({{MultiSet{{{"a", "1"}, {"b", "2"}, {"a", "3"}}}, "done"},
       {MultiGet{{"a", "b", "a"}}, "=3=2=3"},
       {MultiSet{{{"a", "9"}, {text(kMaxKeyBytes + 1), "9"}}}, "!3"},
       {MultiSet{{{"a", "9"}, {"c", text(kMaxValueBytes + 1)}}}, "!3"},
       {MultiGet{{"a", "b"}}, "=3=2"},
       {MultiGet{{"a", "missing"}}, "!5"},
       {MultiGet{{}}, ""},
       {MultiSet{{}}, "done"},
       {Check{{"a", "b"}}, "#1"},
       {Check{{"a", "missing"}}, "#0"},
       {Check{{}}, "#1"}});
}

TEST(EngineTest, ListsAndCountsByPrefixInOrder) {
  run({{MultiSet{{{"b/2", ""}, {"a", ""}, {"b/1", ""}, {"c", ""}, {"b", ""}}}, "done"},
       {List{}, "a b b/1 b/2 c ."},
       {List{"b/", 0, ""}, "b/1 b/2 ."},
       {List{"b", 2, ""}, "b b/1 ..."},
       {List{"b", 2, "b/1"}, "b/2 ."},
       {List{"b/", 0, "zzz"}, "."},
       {Count{""}, "#5"},
       {Count{"b"}, "#3"},
       {Count{"x"}, "#0"}});
}

TEST(EngineTest, AppliesLimitsExactly) {
  const std::vector<std::string> keys(kMaxKeysPerRequest, "k");
  std::vector<std::string> more = keys;
  more.push_back("k");
  const std::vector<std::pair<std::string, std::string>> entries(kMaxKeysPerRequest, {"k", "v"});
  auto more_entries = entries;
  more_entries.emplace_back("k", "v");
  run({{Set{text(kMaxKeyBytes), "v"}, "done"},
       {Set{text(kMaxKeyBytes + 1), "v"}, "!3"},
       {Set{"v", text(kMaxValueBytes)}, "done"},
       {Append{"v", ""}, "#" + std::to_string(kMaxValueBytes)},
       {Append{"v", "1"}, "!3"},
       {Set{"v", text(kMaxValueBytes + 1)}, "!3"},
       {CompareSet{"new", {}, text(kMaxValueBytes + 1)}, "!3"},
       {QueuePush{"q", text(kMaxValueBytes + 1)}, "!3"},
       {QueuePush{text(kMaxKeyBytes + 1), ""}, "!3"},
       {Wait{{text(kMaxKeyBytes + 1)}, kNever}, "!3"},
       {Get{text(kMaxKeyBytes + 1), kNever}, "!3"},
       {QueuePop{text(kMaxKeyBytes + 1), kNever}, "!3"},
       {Barrier{text(kMaxKeyBytes + 1), 1, 0, 0, kNever}, "!3"},
       {Watch{text(kMaxKeyBytes + 1)}, "!3"},
       {MultiSet{entries}, "done"},
       {MultiSet{more_entries}, "!3"},
       {Check{keys}, "#1"},
       {Check{more}, "!3"},
       {Wait{keys, kNever}, "done"},
       {Wait{more, kNever}, "!3"},
       {MultiGet{more}, "!3"}});
}

TEST(EngineTest, LimitsAReplyToOneFrame) {
  EngineScript script;
  const ClientId client = script.join(0);
  script.ask(client, Set{"big", text(kMaxValueBytes)});
  EXPECT_EQ(script.answer(client, MultiGet{std::vector<std::string>(8, "big")}), "!8");
  EXPECT_NE(script.answer(client, MultiGet{std::vector<std::string>(7, "big")}), "!8");
  std::vector<std::pair<std::string, std::string>> entries;
  for (int i = 0; i < 9000; ++i) {
    std::string key = std::to_string(i + 10000);
    key.resize(kMaxKeyBytes, '.');
    entries.emplace_back(std::move(key), "");
  }
  EXPECT_EQ(script.answer(client, MultiSet{std::move(entries)}), "done");
  const auto* page = script.body<Keys>(script.ask(client, List{}));
  ASSERT_NE(page, nullptr);
  EXPECT_TRUE(page->more);
  const std::string last = page->keys.back();
  const std::size_t first_page = page->keys.size();
  const auto* rest = script.body<Keys>(script.ask(client, List{"", 0, last}));
  EXPECT_FALSE(rest->more);
  EXPECT_EQ(first_page + rest->keys.size(), 9001u);
}

TEST(EngineTest, AFullStoreRejectsWritesAndKeepsItsKeys) {
  EngineLimits limits;
  limits.keys = 3;
  run({{MultiSet{{{"a", ""}, {"b", ""}}}, "done"},
       {QueuePush{"q", ""}, "#1"},
       {Set{"c", ""}, "!8"},
       {QueuePush{"q", ""}, "!8"},
       {Barrier{"x", 1, 0, 0, kNever}, "!8"},
       {Set{"a", "other"}, "done"},
       {MultiSet{{{"a", "9"}, {"c", ""}}}, "!8"},
       {Get{"a", {}}, "=other"},
       {QueuePop{"q", {}}, "="},
       {Set{"c", ""}, "done"}},
      limits);
  limits = {};
  limits.store_bytes = 1000;
  run({{Set{"a", text(700)}, "done"},
       {Set{"b", text(100)}, "!8"},
       {Append{"a", text(200)}, "!8"},
       {Append{"a", text(100)}, "#800"},
       {Set{"a", text(1000)}, "!8"},
       {Get{"a", {}}, "=" + text(800)},
       {Set{"a", ""}, "done"},
       {Set{"b", text(100)}, "done"},
       {Barrier{"x", 1000, 0, 0, kNever}, "!8"}},
      limits);
}

TEST(EngineTest, CountersReturnToZero) {
  EngineScript script;
  const ClientId client = script.join(0);
  script.ask(client, Set{"a", "1"});
  script.ask(client, Append{"a", "23"});
  script.ask(client, Set{"a", "4"});
  script.ask(client, MultiSet{{{"a", "567"}, {"b", "8"}, {"b", ""}}});
  script.ask(client, QueuePush{"q", "1"});
  script.ask(client, QueuePush{"q", "2"});
  script.ask(client, QueuePop{"q", {}});
  script.ask(client, QueuePop{"q", {}});
  script.ask(client, Delete{"a"});
  script.ask(client, Delete{"b"});
  EXPECT_EQ(script.engine.bytes(), 0u);
  EXPECT_EQ(script.engine.key_count(), 0u);
}

// ---- Waiting ------------------------------------------------------------------------------------

TEST(EngineWaitTest, AnswersWhenAllKeysExist) {
  EngineScript script;
  const ClientId waiting = script.join(0);
  const ClientId other = script.join(1);
  const RequestId wait = script.ask(waiting, Wait{{"a", "b", "a"}, kNever});
  script.ask(other, Set{"a", "1"});
  EXPECT_TRUE(script.waits(wait));
  script.ask(other, Set{"b", "1"});
  EXPECT_EQ(script.word(wait), "done");
  EXPECT_EQ(script.engine.open_requests(), 0u);
  EXPECT_EQ(script.answer(waiting, Wait{{"a", "b"}, kNever}), "done");
}

TEST(EngineWaitTest, EveryKindOfWriteWakesAWaiter) {
  const std::vector<Request> writes = {Set{"k", "v"},      Set{"k", "v", true},
                                       Add{"k", 1},        CompareSet{"k", {}, "v"},
                                       Append{"k", "v"},   MultiSet{{{"x", ""}, {"k", "v"}}},
                                       AddAndWait{"k", 1}, QueuePush{"k", "v"}};
  for (const Request& write : writes) {
    EngineScript script;
    const ClientId waiting = script.join(0);
    const RequestId wait = script.ask(waiting, Wait{{"k"}, kNever});
    script.ask(script.join(1), write);
    EXPECT_EQ(script.word(wait), "done") << write.index();
  }
}

TEST(EngineWaitTest, ReportsADeletedKeyAsMissing) {
  EngineScript script;
  const ClientId waiting = script.join(0);
  const ClientId other = script.join(1);
  const RequestId wait = script.ask(waiting, Wait{{"a", "b"}, kNever});
  script.ask(other, Set{"a", ""});
  script.ask(other, Delete{"a"});
  EXPECT_EQ(script.engine.wait_graph().waiting.at(0).missing, (std::vector<std::string>{"a", "b"}));
  script.ask(other, Set{"b", ""});
  EXPECT_TRUE(script.waits(wait));
  script.ask(other, Set{"a", ""});
  EXPECT_EQ(script.word(wait), "done");
}

TEST(EngineWaitTest, GetWaitsForItsValue) {
  EngineScript script;
  const RequestId get = script.ask(script.join(0), Get{"k", kNever});
  script.ask(script.join(1), QueuePush{"k", "an item of a queue"});
  EXPECT_TRUE(script.waits(get));
  script.ask(script.join(2), Set{"k", "v"});
  EXPECT_EQ(script.word(get), "=v");
}

TEST(EngineWaitTest, AnswersWritersBeforeWaiters) {
  EngineScript script;
  const RequestId first = script.ask(script.join(0), Get{"k", kNever});
  const RequestId second = script.ask(script.join(1), Get{"k", kNever});
  const RequestId set = script.ask(script.join(2), Set{"k", "v"});
  EXPECT_EQ(script.order(), (std::vector<RequestId>{set, first, second}));
}

TEST(EngineWaitTest, NamesTheMissingKeysAtTheDeadline) {
  EngineScript script;
  const ClientId client = script.join(0);
  script.ask(client, Set{"here", ""});
  const RequestId wait =
      script.ask(client, Wait{{"here", "gone", "bad\x1b[31mkey"}, script.now_ns + 3 * kSecond});
  const RequestId later = script.ask(client, Get{"gone", script.now_ns + 5 * kSecond});
  script.pass(3 * kSecond - 1);
  EXPECT_TRUE(script.waits(wait));
  EXPECT_EQ(script.next_due_ns, script.now_ns + 1);
  script.pass(1);
  EXPECT_EQ(script.word(wait), "!4");
  EXPECT_EQ(script.error_text(wait),
            "waited 3.0 s for keys gone, bad?[31mkey; all connected clients are blocked on it");
  EXPECT_TRUE(script.waits(later));
  script.pass(10 * kSecond);
  EXPECT_EQ(script.error_text(later),
            "waited 13.0 s for key gone; all connected clients are blocked on it");
  EXPECT_EQ(script.next_due_ns, kNever);
}

TEST(EngineWaitTest, NamesMissingWritersAndTheirSilenceAtTheDeadline) {
  EngineScript script;
  const ClientId first = script.join(0);
  const ClientId second = script.join(1);
  const ClientId third = script.join(2);
  const ClientId torch = script.join(std::nullopt, Space::kTorch);
  script.ask(torch, Set{"elsewhere", "1"});
  script.ask(third, Set{"stage", "1"});
  script.now_ns += 4 * kSecond;
  const RequestId other = script.ask(second, Get{"another", script.now_ns + 9 * kSecond});
  const RequestId wait = script.ask(first, Wait{{"id", "stage"}, script.now_ns + 3 * kSecond});
  script.pass(3 * kSecond);
  EXPECT_EQ(script.error_text(wait),
            "waited 3.0 s for key id; not waiting for it: rank 1 (silent for 3.0 s, last: get "
            "another), rank 2 (silent for 7.0 s, last: set stage)");
  // Clients with the same deadline count as waiting for the key, whichever is answered first.
  const RequestId one = script.ask(first, Get{"id", script.now_ns + kSecond});
  const RequestId two = script.ask(third, Get{"id", script.now_ns + kSecond});
  script.pass(kSecond);
  const std::string rest =
      " for key id; not waiting for it: rank 1 (silent for 4.0 s, last: get another)";
  EXPECT_EQ(script.error_text(one), "waited 1.0 s" + rest);
  EXPECT_EQ(script.error_text(two), "waited 1.0 s" + rest);
  EXPECT_TRUE(script.waits(other));
}

TEST(EngineWaitTest, BoundsTheExplanationOfManyExpiredWaits) {
  EngineScript script;
  std::vector<RequestId> waits;
  for (std::uint32_t rank = 0; rank < 2000; ++rank)
    waits.push_back(
        script.ask(script.join(rank), Get{"k" + std::to_string(rank), script.now_ns + kSecond}));
  script.pass(kSecond);
  std::size_t explained = 0;
  for (const RequestId wait : waits) {
    EXPECT_TRUE(script.error_text(wait).starts_with("waited 1.0 s for key k"));
    explained += script.error_text(wait).find("not waiting for it") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(explained, 16u);
}

TEST(EngineWaitTest, CancelEndsOneRequest) {
  EngineScript script;
  const ClientId client = script.join(0);
  const RequestId wait = script.ask(client, Wait{{"a"}, kNever});
  const RequestId other = script.ask(client, Wait{{"a"}, kNever});
  EXPECT_EQ(script.answer(client, Cancel{wait}), "done");
  EXPECT_EQ(script.word(wait), "!1");
  EXPECT_TRUE(script.waits(other));
  EXPECT_EQ(script.answer(client, Cancel{wait}), "done") << "a second cancel";
  EXPECT_EQ(script.answer(script.join(1), Cancel{other}), "done") << "another client's request";
  EXPECT_TRUE(script.waits(other));
  script.engine.leave(client);
  EXPECT_EQ(script.engine.open_requests(), 0u);
  EXPECT_EQ(script.engine.waiting_bytes(), 0u);
}

TEST(EngineWaitTest, LimitsWaitsOfEachClientAndOfAll) {
  EngineLimits limits;
  limits.waits_per_client = 2;
  limits.waiting_bytes_per_client = 97'500;
  limits.waiting_bytes = 115'000;
  EngineScript script(limits);
  const ClientId first = script.join(0);
  const ClientId second = script.join(1);
  EXPECT_EQ(script.answer(first, Wait{{std::string(8000, 'a')}, kNever}), "-");
  EXPECT_EQ(script.answer(first, Get{"b", kNever}), "-");
  EXPECT_EQ(script.answer(first, Get{"c", kNever}), "!8");
  EXPECT_EQ(script.answer(first, QueuePop{"c", kNever}), "!8");
  EXPECT_EQ(script.answer(first, Barrier{"c", 2, 0, 0, kNever}), "!8");
  const std::vector<std::string> many(6, std::string(8000, 'm'));
  EXPECT_EQ(script.answer(second, Wait{many, kNever}), "-");
  EXPECT_EQ(script.answer(second, Get{"b", kNever}), "!8") << "the limit of one client";
  const ClientId third = script.join(2);
  EXPECT_EQ(script.answer(third, Get{std::string(8000, 'b'), kNever}), "!8")
      << "the limit of all clients";
  script.engine.leave(second);
  EXPECT_EQ(script.answer(third, Get{std::string(8000, 'b'), kNever}), "-");
}

TEST(EngineWaitTest, TorchsWaitsLeaveRoomForOthers) {
  EngineLimits limits;
  limits.torch_waiting_bytes = 40'000;
  EngineScript script(limits);
  const std::vector<std::string> many(2, std::string(8000, 'm'));
  const ClientId first = script.join(std::nullopt, Space::kTorch);
  EXPECT_EQ(script.answer(first, Wait{many, kNever}), "-");
  EXPECT_EQ(script.answer(script.join(std::nullopt, Space::kTorch), Wait{many, kNever}), "!8");
  EXPECT_EQ(script.answer(script.join(0), Wait{many, kNever}), "-");
  script.engine.leave(first);
  EXPECT_EQ(script.answer(script.join(std::nullopt, Space::kTorch), Wait{many, kNever}), "-");
}

TEST(EngineWaitTest, AllowsOneWaitPerRequestNumber) {
  Engine engine;
  const ClientId client = *engine.join({}, 0);
  Replies replies;
  engine.apply(client, 7, Get{"a", kNever}, 0, replies);
  engine.apply(client, 7, Get{"b", kNever}, 0, replies);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(EngineScript::word(replies[0]), "!3");
  EXPECT_EQ(engine.open_requests(), 1u);
}

// ---- Queues -------------------------------------------------------------------------------------

TEST(EngineQueueTest, PopsInTheOrderOfPushes) {
  run({{QueuePop{"q", {}}, "!5"},
       {QueueLength{"q"}, "#0"},
       {QueuePush{"q", "1"}, "#1"},
       {QueuePush{"q", "2"}, "#2"},
       {Check{{"q"}}, "#1"},
       {Get{"q", {}}, "!5"},
       {Count{""}, "#0"},
       {QueuePop{"q", {}}, "=1"},
       {QueuePop{"q", kNever}, "=2"},
       {Check{{"q"}}, "#0"}});
}

TEST(EngineQueueTest, GivesAnItemToTheLongestWaiter) {
  EngineScript script;
  const RequestId first = script.ask(script.join(0), QueuePop{"q", kNever});
  const RequestId second = script.ask(script.join(1), QueuePop{"q", kNever});
  const RequestId exists = script.ask(script.join(2), Wait{{"q"}, kNever});
  const ClientId pusher = script.join(3);
  script.ask(pusher, QueuePush{"q", "a"});
  EXPECT_EQ(script.word(first), "=a");
  EXPECT_TRUE(script.waits(second));
  EXPECT_TRUE(script.waits(exists)) << "the item was popped";
  script.ask(pusher, QueuePush{"q", "b"});
  EXPECT_EQ(script.word(second), "=b");
  script.ask(pusher, QueuePush{"q", "c"});
  EXPECT_EQ(script.word(exists), "done");
}

TEST(EngineQueueTest, GivesNothingToAClientThatLeft) {
  EngineScript script;
  const ClientId gone = script.join(0);
  script.ask(gone, QueuePop{"q", kNever});
  script.engine.leave(gone);
  EXPECT_EQ(script.answer(script.join(1), QueuePush{"q", "a"}), "#1");
  EXPECT_EQ(script.answer(script.join(2), QueuePop{"q", {}}), "=a");
}

// ---- Barriers -----------------------------------------------------------------------------------

TEST(EngineBarrierTest, CompletesInRounds) {
  EngineScript script;
  const ClientId a = script.join(0);
  const ClientId b = script.join(1);
  for (int round = 1; round <= 3; ++round) {
    const RequestId first = script.ask(a, Barrier{"x", 2, 0, 0, kNever});
    EXPECT_TRUE(script.waits(first));
    const RequestId second = script.ask(b, Barrier{"x", 2, 1, 0, kNever});
    EXPECT_EQ(script.word(first), "#" + std::to_string(round));
    EXPECT_EQ(script.word(second), "#" + std::to_string(round));
  }
  EXPECT_EQ(script.answer(a, Barrier{"x", 1, 0, 0, kNever}), "#4")
      << "the next round may have another size";
}

TEST(EngineBarrierTest, CountsAMemberOnce) {
  EngineScript script;
  const ClientId a = script.join(0);
  const RequestId once = script.ask(a, Barrier{"x", 2, 0, 0, kNever});
  const RequestId twice = script.ask(a, Barrier{"x", 2, 0, 0, kNever});
  EXPECT_TRUE(script.waits(once));
  EXPECT_TRUE(script.waits(twice));
  script.ask(script.join(1), Barrier{"x", 2, 1, 0, kNever});
  EXPECT_EQ(script.word(once), "#1");
  EXPECT_EQ(script.word(twice), "#1");
}

TEST(EngineBarrierTest, DoesNotCountMembersThatLeftOrGaveUp) {
  EngineScript script;
  const ClientId gone = script.join(0);
  script.ask(gone, Barrier{"x", 2, 0, 0, kNever});
  script.engine.leave(gone);
  const ClientId b = script.join(1);
  const RequestId waiting = script.ask(b, Barrier{"x", 2, 1, 0, script.now_ns + kSecond});
  EXPECT_TRUE(script.waits(waiting));
  script.pass(kSecond);
  EXPECT_EQ(script.error_text(waiting),
            "waited 1.0 s for barrier 'x' of 2; members that have not arrived: 0; all connected "
            "clients are blocked on it");
  const RequestId again = script.ask(script.join(0), Barrier{"x", 2, 0, 0, kNever});
  EXPECT_TRUE(script.waits(again));
}

TEST(EngineBarrierTest, AbortsABarrierOnALossIfRequested) {
  EngineScript script;
  const ClientId gone = script.join(0);
  const ClientId b = script.join(1);
  const ClientId c = script.join(2);
  script.ask(gone, Barrier{"x", 4, 0, 0, kNever, true});
  script.ask(gone, Barrier{"y", 4, 0, 0, kNever});
  const RequestId waiting = script.ask(b, Barrier{"x", 4, 1, 0, kNever, true});
  const RequestId other = script.ask(b, Barrier{"y", 4, 1, 0, kNever});
  // A member whose wait times out is not lost.
  const RequestId tired = script.ask(c, Barrier{"x", 4, 2, 0, script.now_ns + kSecond, true});
  script.pass(kSecond);
  EXPECT_NE(script.error_text(tired), "");
  EXPECT_TRUE(script.waits(waiting));
  script.engine.leave(gone);
  script.pass(0);
  EXPECT_EQ(script.word(waiting), "#-1");
  EXPECT_TRUE(script.waits(other)) << "this barrier did not request it";
  EXPECT_EQ(script.answer(c, Barrier{"x", 4, 2, 0, kNever, true}), "#-1");
  EXPECT_EQ(script.answer(script.join(0), Barrier{"x", 4, 0, 0, kNever, true}), "#-1");
}

TEST(EngineBarrierTest, AnswersARepeatedArrivalAgain) {
  EngineScript script;
  const ClientId a = script.join(0);
  const ClientId b = script.join(1);
  script.ask(a, Barrier{"x", 2, 0, 77, kNever});
  EXPECT_EQ(script.answer(b, Barrier{"x", 2, 1, 88, kNever}), "#1");
  EXPECT_EQ(script.answer(script.join(0), Barrier{"x", 2, 0, 77, kNever}), "#1");
  EXPECT_EQ(script.answer(a, Barrier{"x", 2, 0, 78, kNever}), "-") << "the next round";
}

TEST(EngineBarrierTest, RejectsContradictingSizesAndMembers) {
  EngineScript script;
  const ClientId a = script.join(0);
  script.ask(a, Barrier{"x", 2, 0, 0, kNever});
  EXPECT_EQ(script.answer(a, Barrier{"x", 3, 1, 0, kNever}), "!3");
  EXPECT_EQ(script.answer(a, Barrier{"y", 0, 0, 0, kNever}), "!3");
  EXPECT_EQ(script.answer(a, Barrier{"y", 2, 2, 0, kNever}), "!3");
}

TEST(EngineBarrierTest, TorchsCounterReleasesAllAtTheNumber) {
  EngineScript script;
  const RequestId a = script.ask(script.join(0), AddAndWait{"c", 3});
  const RequestId b = script.ask(script.join(1), AddAndWait{"c", 3});
  EXPECT_TRUE(script.waits(a));
  const RequestId c = script.ask(script.join(2), AddAndWait{"c", 3});
  EXPECT_EQ(script.word(a) + script.word(b) + script.word(c), "donedonedone");
  EXPECT_EQ(script.answer(script.join(3), Get{"c", {}}), "=3");
}

// ---- Watches ------------------------------------------------------------------------------------

TEST(EngineWatchTest, ReportsEveryChangeBelowItsPrefix) {
  EngineScript script;
  const ClientId watcher = script.join(0);
  const RequestId watch = script.ask(watcher, Watch{"a/"});
  const RequestId exact = script.ask(watcher, Watch{"a/1", true});
  const ClientId other = script.join(1);
  script.ask(other, Set{"a/1", "x"});
  script.ask(other, Set{"b", "x"});
  script.ask(other, Add{"a/10", 2});
  script.ask(other, Delete{"a/1"});
  EXPECT_EQ(script.all_words(watch), "done 1:a/1=x 1:a/10=2 2:a/1=");
  EXPECT_EQ(script.all_words(exact), "kept=(missing) 1:a/1=x 2:a/1=");
  script.ask(watcher, Cancel{watch});
  script.engine.end_watch(watcher, exact);
  script.ask(other, Set{"a/1", "y"});
  EXPECT_EQ(script.all_words(exact), "kept=(missing) 1:a/1=x 2:a/1=");
}

TEST(EngineWatchTest, LimitsTheNumberOfWatches) {
  EngineLimits limits;
  limits.watches_per_client = 1;
  EngineScript script(limits);
  const ClientId client = script.join(0);
  const RequestId first = script.ask(client, Watch{"a"});
  EXPECT_EQ(script.answer(client, Watch{"b"}), "!8");
  script.ask(client, Cancel{first});
  EXPECT_EQ(script.answer(client, Watch{"b"}), "done");
}

// ---- Spaces and generations ---------------------------------------------------------------------

TEST(EngineSpaceTest, SeparatesTheKeysOfDialects) {
  EngineScript script;
  const ClientId native = script.join(0);
  const ClientId torch = script.join(1, Space::kTorch);
  script.ask(native, Set{"k", "native"});
  EXPECT_EQ(script.answer(torch, Get{"k", {}}), "!5");
  const RequestId wait = script.ask(torch, Get{"k", kNever});
  script.ask(native, Set{"k", "again"});
  EXPECT_TRUE(script.waits(wait));
  EXPECT_EQ(script.answer(torch, Count{}), "#0");
}

TEST(EngineGenerationTest, ClearsThePreviousGeneration) {
  EngineScript script;
  const ClientId old = script.join(0);
  script.ask(old, Set{"k", "v"});
  script.ask(old, QueuePush{"q", "v"});
  script.ask(old, Watch{""});
  const RequestId wait = script.ask(old, Wait{{"never"}, kNever});
  const RequestId barrier = script.ask(old, Barrier{"x", 2, 0, 0, kNever});
  script.begin_generation(1);
  EXPECT_EQ(script.word(wait), "!10");
  EXPECT_EQ(script.word(barrier), "!10");
  EXPECT_EQ(script.engine.bytes(), 0u);
  EXPECT_EQ(script.engine.key_count(), 0u);
  EXPECT_EQ(script.engine.open_requests(), 0u);
  EXPECT_EQ(script.answer(old, Set{"k", "late"}), "!9");
  EXPECT_EQ(script.answer(old, Cancel{1}), "!9");
  const ClientId fresh = script.join(0);
  EXPECT_EQ(script.answer(fresh, Get{"k", {}}), "!5");
  EXPECT_EQ(script.answer(fresh, QueuePop{"q", {}}), "!5");
  EXPECT_EQ(script.answer(fresh, Barrier{"x", 1, 0, 0, kNever}), "#1");
  EXPECT_FALSE(script.engine.join({}, 0).ok()) << "generation 0 is no longer served";
}

TEST(EngineGenerationTest, CountsChangesAsProgress) {
  EngineScript script;
  const ClientId client = script.join(0);
  script.ask(client, Set{"k", "v"});
  const std::uint64_t before = script.engine.changes();
  script.ask(client, Check{{"k"}});
  script.ask(client, Get{"k", {}});
  script.ask(client, Get{"other", kNever});
  EXPECT_EQ(script.engine.changes(), before);
  script.ask(client, Delete{"k"});
  EXPECT_GT(script.engine.changes(), before);
}

}  // namespace
}  // namespace ivy::store
