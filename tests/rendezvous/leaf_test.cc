// The leaf: what goes up, what is answered here, and who it is for whom the store waits.
#include "rendezvous/dialects/leaf.h"

#include <gtest/gtest.h>

#include "rendezvous/dialects/leaf_wire.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/engine/write_once.h"
#include "tests/rendezvous/leaf_script.h"
#include "tests/rendezvous/torch_script.h"

namespace ivy::store {
namespace {

using test::LeafScript;

constexpr std::uint64_t kSecond = 1'000'000'000;

// ---- Every request means the same through a leaf ------------------------------------------------

TEST(LeafTest, EveryRequestIsAnsweredAsByTheStore) {
  struct Row {
    Request request;
    const char* answer;
  };
  const std::vector<Row> rows = {
      {Set{"a", "1"}, "done"},
      {Set{"once", "x", true}, "done"},
      {Set{"once", "y", true}, "!6"},
      {Get{"a", std::nullopt}, "=1"},
      {Get{"none", std::nullopt}, "!5"},
      {Get{"a", kNever}, "=1"},
      {Wait{{"a", "once"}}, "done"},
      {Wait{{"a"}}, "done"},
      {Wait{{}}, "done"},
      {Wait{{"none"}}, "-"},
      {Check{{"a", "once"}}, "#1"},
      {Check{{"a", "none"}}, "#0"},
      {Check{}, "#1"},
      {Add{"n", -5}, "#-5"},
      {Add{"once", 1}, "!3"},
      {CompareSet{"a", "0", "2"}, "kept=1"},
      {CompareSet{"a", "1", "2"}, "stored=2"},
      {CompareSet{"b", std::nullopt, "1"}, "stored=1"},
      {CompareSet{"c", "want", "1", true}, "kept=want"},
      {CompareSet{"c", "", "1", true}, "stored=1"},
      {Append{"a", "3"}, "#2"},
      {Delete{"b"}, "#1"},
      {Delete{"b"}, "#0"},
      {MultiSet{{{"m1", "1"}, {"m2", "2"}}}, "done"},
      {MultiGet{{"m2", "m1"}}, "=2=1"},
      {MultiGet{{"m2", "none"}}, "!5"},
      {QueuePush{"q", "1"}, "#1"},
      {QueuePush{"q", "2"}, "#2"},
      {QueueLength{"q"}, "#2"},
      {Check{{"q"}}, "#1"},
      {QueuePop{"q", kNever}, "=1"},
      {QueuePop{"q", std::nullopt}, "=2"},
      {QueuePop{"q", std::nullopt}, "!5"},
      {List{"m", 1, ""}, "m1 ..."},
      {Count{"m"}, "#2"},
      {Barrier{"bar", 1, 0, 7}, "#1"},
      {AddAndWait{"counter", 1}, "done"},
      {AddAndWait{"counter", 9}, "-"},
      {Watch{"w"}, "done"},
      {Watch{"a", true}, "kept=23"},
      {Cancel{9999}, "done"},
      {Get{std::string(kMaxKeyBytes + 1, 'k'), kNever}, "!3"},
      {Wait{std::vector<std::string>(kMaxKeysPerRequest + 1)}, "!3"},
  };
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}}) {
    LeafScript script({}, cut);
    const ClientId client = script.join(0);
    for (const Row& row : rows) {
      if (cut != 0 && row.request.index() == 2 && std::get<Wait>(row.request).keys.size() > 100)
        continue;
      EXPECT_EQ(script.answer(client, row.request), row.answer)
          << "request of kind " << row.request.index() << ", cut " << cut;
    }
  }
}

// A client of the leaf, and then the leaf itself, lose their connection while an answer is on its
// way.
TEST(LeafTest, WhatIsRepeatedThroughALeafIsDoneOnce) {
  constexpr SessionId kSession = 9;
  struct Row {
    Request request;  // As number 1.
    Request of_another;
    const char* answer;
    const char* left;  // Of the key k.
  };
  const Numbered first{1, 1, false};
  const std::vector<Row> rows = {
      {Set{"k", "1", false, first}, Set{"k", "2"}, "done", "=2"},
      {Set{"k", "old", true, first}, Set{"k", "2"}, "done", "=2"},
      {MultiSet{{{"k", "1"}, {"l", "1"}}, first}, Delete{"k"}, "done", "!5"},
      {Delete{"k", first}, Set{"k", "2"}, "#1", "=2"},
  };
  for (const Row& row : rows) {
    for (const bool leaf_is_lost : {false, true}) {
      LeafScript script;
      script.at_the_store(Set{"k", "old"});
      const auto join = [&](LeafScript& at) {
        return at.join(0, Space::kNative, "127.0.0.1:777", kSession);
      };
      const ClientId before = join(script);
      const RequestId lost = script.ask(before, row.request);
      script.up();
      script.under_way.clear();
      EXPECT_EQ(script.word(lost), "-");
      script.at_the_store(row.of_another);
      script.under_way.clear();
      script.leaf.leave(before);
      if (leaf_is_lost) script.dial();
      const ClientId after = join(script);
      Request repeated = row.request;
      numbered_of(repeated)->again = true;
      EXPECT_EQ(script.answer(after, repeated), row.answer) << row.request.index();
      EXPECT_EQ(script.answer(after, Get{"k", std::nullopt}), row.left) << row.request.index();
      Set next{"k", "3"};
      next.numbered = {2, 2, false};
      EXPECT_EQ(script.answer(after, next), "done");
      EXPECT_EQ(script.at_the_store(Get{"k", std::nullopt}), "=3");
    }
  }
}

TEST(LeafTest, TorchsCountedPopTellsTheLength) {
  LeafScript script;
  const ClientId client = script.join(0, Space::kTorch);
  script.answer(client, QueuePush{"q", "item"});
  script.answer(client, QueuePop{"q", std::nullopt, true});
  EXPECT_EQ(script.direct.engine.key_count(), 0u);
}

TEST(LeafTest, AWatchGoesOnUntilItIsCancelled) {
  LeafScript script;
  const ClientId client = script.join(0);
  const RequestId watch = script.ask(client, Watch{"a/"});
  script.settle();
  script.at_the_store(Set{"a/1", "x"});
  script.settle();
  EXPECT_EQ(script.all_words(watch), "done 1:a/1=x");
  EXPECT_EQ(script.answer(client, Cancel{watch}), "done");
  script.at_the_store(Set{"a/1", "y"});
  script.settle();
  EXPECT_EQ(script.all_words(watch), "done 1:a/1=x");
}

// ---- What is written once -----------------------------------------------------------------------

TEST(LeafKeepsTest, AWriteOnceValueIsFetchedOncePerHost) {
  LeafScript script;
  std::vector<ClientId> clients;
  for (std::uint32_t rank = 0; rank < 8; ++rank) clients.push_back(script.join(rank));
  std::vector<RequestId> gets;
  for (const ClientId client : clients) gets.push_back(script.ask(client, Get{"id", kNever}));
  script.settle();
  script.at_the_store(Set{"id", "128 bytes", true});
  script.settle();
  for (const RequestId get : gets) EXPECT_EQ(script.word(get), "=128 bytes");
  EXPECT_EQ(script.forwarded(), 1u);
  for (const ClientId client : clients) {
    EXPECT_EQ(script.answer(client, Get{"id", std::nullopt}), "=128 bytes");
    EXPECT_EQ(script.answer(client, Wait{{"id"}}), "done");
    EXPECT_EQ(script.answer(client, Check{{"id"}}), "#1");
    EXPECT_EQ(script.answer(client, MultiGet{{"id", "id"}}), "=128 bytes=128 bytes");
  }
  EXPECT_EQ(script.forwarded(), 0u);
}

TEST(LeafKeepsTest, AWaitBringsTheValueAlong) {
  LeafScript script;
  const ClientId client = script.join(0);
  script.at_the_store(Set{"id", "v", true});
  EXPECT_EQ(script.answer(client, Wait{{"id"}}), "done");
  script.forwarded();
  EXPECT_EQ(script.answer(client, Get{"id", std::nullopt}), "=v");
  EXPECT_EQ(script.forwarded(), 0u);
}

TEST(LeafKeepsTest, OrdinaryValuesAreAskedForEachTime) {
  LeafScript script;
  const ClientId client = script.join(0);
  script.at_the_store(Set{"k", "1"});
  EXPECT_EQ(script.answer(client, Get{"k", kNever}), "=1");
  script.at_the_store(Set{"k", "2"});
  EXPECT_EQ(script.answer(client, Get{"k", kNever}), "=2");
}

TEST(LeafKeepsTest, ForgetsWhatIsRemovedOrWrittenInAnotherWay) {
  const std::vector<std::pair<Request, const char*>> changes = {
      {Delete{"id"}, "!5"},
      {Set{"id", "9"}, "=9"},
      {Append{"id", "9"}, "=19"},
      {Add{"id", 1}, "=2"},
      {CompareSet{"id", "1", "7"}, "=7"},
      {MultiSet{{{"id", "8"}}}, "=8"},
  };
  for (const auto& [change, now] : changes) {
    for (const bool through_the_leaf : {false, true}) {
      LeafScript script;
      const ClientId client = script.join(0);
      script.at_the_store(Set{"id", "1", true});
      ASSERT_EQ(script.answer(client, Get{"id", std::nullopt}), "=1");
      if (through_the_leaf) {
        script.answer(client, change);
      } else {
        script.at_the_store(change);
        script.settle();
      }
      EXPECT_EQ(script.answer(client, Get{"id", std::nullopt}), now) << change.index();
      script.forwarded();
      // It is not written once any more.
      script.answer(client, Get{"id", std::nullopt});
      EXPECT_EQ(script.forwarded(), 1u) << change.index();
    }
  }
}

// The answer is under way while the value is replaced: it must not be kept.
TEST(LeafKeepsTest, AValueThatChangedOnTheWayIsNotKept) {
  LeafScript script;
  const ClientId client = script.join(0);
  script.at_the_store(Set{"id", "1", true});
  const RequestId get = script.ask(client, Get{"id", std::nullopt});
  script.up();
  script.at_the_store(Delete{"id"});
  script.at_the_store(Set{"id", "2", true});
  script.settle();
  EXPECT_EQ(script.word(get), "=1") << "of a moment between request and answer";
  EXPECT_EQ(script.answer(client, Get{"id", std::nullopt}), "=2");
}

// Its own write goes up behind a read of the old value, whose answer comes first.
TEST(LeafKeepsTest, AClientReadsWhatItHasWritten) {
  LeafScript script;
  const ClientId client = script.join(0);
  script.at_the_store(Set{"id", "1", true});
  const RequestId before = script.ask(script.join(1), Get{"id", kNever});
  script.up();
  const RequestId set = script.ask(client, Set{"id", "2"});
  script.down();  // The old value comes, to be kept, behind the write.
  EXPECT_EQ(script.word(before), "=1");
  const RequestId get = script.ask(client, Get{"id", kNever});
  script.settle();
  EXPECT_EQ(script.word(set), "done");
  EXPECT_EQ(script.word(get), "=2");
}

TEST(LeafKeepsTest, HoldsNoMoreThanItsLimits) {
  LeafLimits limits;
  limits.kept_bytes = 1000;
  LeafScript script(limits);
  const ClientId client = script.join(0);
  script.at_the_store(Set{"small", "1", true});
  script.at_the_store(Set{"large", std::string(2000, 'x'), true});
  for (const char* key : {"small", "large"}) script.answer(client, Get{key, std::nullopt});
  script.forwarded();
  script.answer(client, Get{"small", std::nullopt});
  EXPECT_EQ(script.forwarded(), 0u);
  EXPECT_EQ(script.answer(client, Get{"large", std::nullopt}), "=" + std::string(2000, 'x'));
  EXPECT_EQ(script.forwarded(), 1u);
}

TEST(LeafKeepsTest, TorchsKeysAreToldByTheirNames) {
  const std::vector<std::pair<const char*, bool>> rows = {
      {"/default_pg/0//cuda//0", true},
      {"//worker/attempt_0/default_pg/0/0/rank_1", true},
      {"/default_pg/0//cpu//0/3", true},
      {"/default_pg/12/0/7", true},
      {"/default_pg/0/SEQ_NUM_STORE_KEY", false},
      {"/default_pg/store_based_barrier_key:1", false},
      {"/default_pg/step", false},
      {"/default_pg/my/own/key", false},
      {"/default_pg//a/b", false},
      {"/default_pg/0//", false},
      {"/step", false},
      {"", false},
  };
  for (const auto& [key, is_once] : rows) EXPECT_EQ(write_once_by_name(key), is_once) << key;
}

TEST(LeafKeepsTest, TorchsUniqueIdIsFetchedOncePerHost) {
  LeafScript script;
  std::vector<ClientId> ranks;
  for (std::uint32_t rank = 0; rank < 8; ++rank) ranks.push_back(script.join({}, Space::kTorch));
  const std::string key = "/default_pg/0//cuda//0";
  for (const ClientId rank : ranks) script.ask(rank, Wait{{key}});
  script.settle();
  script.at_the_store(Set{key, "id"}, Space::kTorch);
  script.settle();
  for (const ClientId rank : ranks) EXPECT_EQ(script.answer(rank, Get{key, kNever}), "=id");
  EXPECT_EQ(script.forwarded(), 1u);
}

// ---- Flights ------------------------------------------------------------------------------------

// Those who came while the answer may have been under way ask again: it may be older than they are.
TEST(LeafFlightTest, WhoJoinsLaterGetsNoOlderAnswer) {
  LeafScript script;
  const ClientId first = script.join(0);
  const ClientId second = script.join(1);
  script.at_the_store(Set{"k", "1"});
  const RequestId early = script.ask(first, Get{"k", kNever});
  script.up();  // Answered "1", under way.
  script.at_the_store(Set{"k", "2"});
  const RequestId late = script.ask(second, Get{"k", kNever});
  script.down();
  EXPECT_EQ(script.word(early), "=1");
  EXPECT_EQ(script.word(late), "-");
  script.settle();
  EXPECT_EQ(script.word(late), "=2");
}

TEST(LeafFlightTest, ManyWaitsAreTwoFlights) {
  LeafScript script;
  std::vector<RequestId> waits;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    waits.push_back(script.ask(script.join(rank), Wait{{"k"}}));
  script.settle();
  EXPECT_EQ(script.forwarded(), 1u);
  script.at_the_store(Set{"k", "1"});
  script.settle();
  EXPECT_EQ(script.forwarded(), 1u);
  for (const RequestId wait : waits) EXPECT_EQ(script.word(wait), "done");
  EXPECT_EQ(script.leaf.open_requests(), 0u);
  EXPECT_EQ(script.direct.engine.open_requests(), 0u);
}

TEST(LeafFlightTest, GoesOnWithoutTheOneWhoseRequestItWas) {
  enum class How { kLeaves, kCancels, kTimesOut };
  for (const How how : {How::kLeaves, How::kCancels, How::kTimesOut}) {
    LeafScript script;
    const ClientId first = script.join(0);
    const ClientId second = script.join(1);
    const RequestId leader = script.ask(first, Get{"k", script.direct.now_ns + kSecond});
    const RequestId other = script.ask(second, Get{"k", kNever});
    script.settle();
    if (how == How::kLeaves) script.leaf.leave(first);
    if (how == How::kCancels) {
      EXPECT_EQ(script.answer(first, Cancel{leader}), "done");
    }
    if (how == How::kTimesOut) script.pass(2 * kSecond);
    script.settle();
    EXPECT_EQ(script.word(leader), how == How::kLeaves ? "-" : how == How::kCancels ? "!1" : "!4");
    EXPECT_EQ(script.direct.engine.open_requests(), 1u);
    script.at_the_store(Set{"k", "1"});
    script.settle();
    EXPECT_EQ(script.word(other), "=1");
    EXPECT_EQ(script.direct.engine.open_requests(), 0u);
  }
}

TEST(LeafFlightTest, WhoSharesHasADeadlineOfItsOwn) {
  LeafScript script;
  const RequestId leader = script.ask(script.join(0), Wait{{"k"}});
  const RequestId other = script.ask(script.join(1), Wait{{"k"}, script.direct.now_ns + kSecond});
  script.settle();
  script.pass(3 * kSecond);
  EXPECT_EQ(script.word(other), "!4");
  EXPECT_EQ(script.error_text(other), "waited 3.0 s for key k");
  EXPECT_EQ(script.word(leader), "-");
  EXPECT_EQ(script.leaf.open_requests(), 1u);
}

TEST(LeafFlightTest, CancelEndsWhatWaitsAtTheStore) {
  LeafScript script;
  const ClientId client = script.join(0);
  for (const Request& request : {Request(Wait{{"k"}}), Request(Wait{{"k", "l"}}),
                                 Request(Get{"k", kNever}), Request(QueuePop{"q", kNever}),
                                 Request(Barrier{"b", 2, 0, 1}), Request(AddAndWait{"n", 5})}) {
    const RequestId waits = script.ask(client, request);
    script.settle();
    EXPECT_EQ(script.answer(client, Cancel{0, {waits, 12345}}), "done");
    EXPECT_EQ(script.word(waits), "!1") << request.index();
    EXPECT_EQ(script.direct.engine.open_requests(), 0u) << request.index();
    EXPECT_EQ(script.leaf.open_requests(), 0u) << request.index();
  }
}

// The item was under way when it was cancelled: it must not be lost.
TEST(LeafFlightTest, ACancelThatComesTooLateLosesNoItem) {
  LeafScript script;
  const ClientId client = script.join(0);
  const RequestId pop = script.ask(client, QueuePop{"q", kNever});
  script.up();
  script.at_the_store(QueuePush{"q", "item"});
  const RequestId cancel = script.ask(client, Cancel{pop});
  script.settle();
  EXPECT_EQ(script.all_words(pop), "=item");
  EXPECT_EQ(script.word(cancel), "done");
}

TEST(LeafFlightTest, AClientThatIsGoneLeavesNothingBehind) {
  LeafScript script;
  const ClientId client = script.join(0);
  script.ask(client, Wait{{"a", "b"}});
  script.ask(client, Get{"c", kNever});
  script.ask(client, QueuePop{"q", kNever});
  script.ask(client, Barrier{"bar", 2, 0, 1});
  script.ask(client, Watch{"w"});
  script.settle();
  EXPECT_EQ(script.direct.engine.open_requests(), 4u);
  script.leaf.leave(client);
  script.settle();
  EXPECT_EQ(script.direct.engine.open_requests(), 0u);
  EXPECT_EQ(script.direct.engine.waiting_bytes(), 0u);
  EXPECT_EQ(script.leaf.open_requests(), 0u);
  EXPECT_EQ(script.dialect->client_count(), 0u);
  EXPECT_TRUE(script.direct.engine.wait_graph().clients.empty());
}

TEST(LeafFlightTest, GetsThatDoNotWaitShareAFlightToo) {
  LeafScript script;
  std::vector<ClientId> ranks;
  for (std::uint32_t rank = 0; rank < 8; ++rank) ranks.push_back(script.join(rank));
  for (const char* answer : {"!5", "=1"}) {
    std::vector<RequestId> gets;
    for (const ClientId rank : ranks) gets.push_back(script.ask(rank, Get{"k", std::nullopt}));
    script.settle();
    EXPECT_EQ(script.forwarded(), 2u);
    for (const RequestId get : gets) EXPECT_EQ(script.word(get), answer);
    EXPECT_EQ(script.leaf.open_requests(), 0u);
    script.at_the_store(Set{"k", "1"});
  }
}

// ---- torch's clients ----------------------------------------------------------------------------

// A client of torch's protocol at the leaf of a script; its end is the end of its connection.
class TorchAtLeaf {
 public:
  explicit TorchAtLeaf(LeafScript& script)
      : script_(script), dialect_(script.leaf, 0, "127.0.0.1:777") {
    send(test::opcode(0) + test::word32(0x3C85F7CE));
  }
  void send(const std::string& bytes) {
    Replies replies;
    ASSERT_TRUE(dialect_.receive(bytes, script_.direct.now_ns, replies).ok());
  }
  Result<void> hear(decltype(Reply::body) body, RequestId request) {
    std::string bytes;
    return dialect_.reply({dialect_.client(), request, std::move(body)}, bytes);
  }

 private:
  LeafScript& script_;
  TorchDialect dialect_;
};

// torch does not wait for what it writes: it may write much at once, and hang up behind it.
TEST(LeafTorchTest, WhatIsWrittenBeforeTheEndIsWritten) {
  using test::number, test::opcode, test::text;
  LeafScript script;
  {
    TorchAtLeaf writer(script);
    writer.send(opcode(1) + text("/first") + text("1") +                     // SET
                opcode(9) + text("/appended") + text("2") +                  // APPEND
                opcode(11) + number(1) + text("/one of many") + text("3") +  // MULTI_SET
                opcode(14) + text("/queue") + text("4") +                    // QUEUE_PUSH
                opcode(1) + text("/last") + text("5"));
  }
  script.settle();
  const auto value = [&](const char* key) {
    return script.at_the_store(Get{key, std::nullopt}, Space::kTorch);
  };
  EXPECT_EQ(value("/first"), "=1");
  EXPECT_EQ(value("/appended"), "=2");
  EXPECT_EQ(value("/one of many"), "=3");
  EXPECT_EQ(script.at_the_store(QueueLength{"/queue"}, Space::kTorch), "#1");
  EXPECT_EQ(value("/last"), "=5");
}

// Somebody of the same host waits for the second of them.
TEST(LeafTorchTest, AWaitHearsOfTheLastWriteOfAClientThatIsGone) {
  using test::opcode, test::text;
  LeafScript script;
  const ClientId waiting = script.join({}, Space::kTorch);
  const RequestId wait = script.ask(waiting, Wait{{"/pre/key1"}});
  script.settle();
  {
    TorchAtLeaf writer(script);
    writer.send(opcode(1) + text("/key1") + text("value1"));
    writer.send(opcode(1) + text("/pre/key1") + text("value1"));
  }
  script.settle();
  EXPECT_EQ(script.word(wait), "done");
}

// destroy and init of a process group within one generation: rank 0 publishes its id again under
// the same name. Who has heard of anything that came later does not read the older one.
TEST(LeafTorchTest, AnIdThatIsPublishedAgainIsReadByWhoeverHasHeardOfLaterThings) {
  LeafScript script;
  const ClientId rank = script.join({}, Space::kTorch);
  const std::string key = "/default_pg/0//cuda//0";
  script.at_the_store(Set{key, "first"}, Space::kTorch);
  EXPECT_EQ(script.answer(rank, Wait{{key}}), "done");
  EXPECT_EQ(script.answer(rank, Get{key, std::nullopt}), "=first");
  const RequestId later = script.ask(rank, Wait{{"/later"}});
  script.settle();
  script.at_the_store(Set{key, "second"}, Space::kTorch);
  script.at_the_store(Set{"/later", ""}, Space::kTorch);
  script.down();
  EXPECT_EQ(script.word(later), "done");
  EXPECT_EQ(script.answer(rank, Wait{{key}}), "done");
  EXPECT_EQ(script.answer(rank, Get{key, std::nullopt}), "=second");
}

TEST(LeafTorchTest, AWriteThatIsRefusedLaterEndsTheConnection) {
  LeafScript script;
  TorchAtLeaf writer(script);
  writer.send(test::opcode(1) + test::text("/a") + test::text("1"));
  constexpr RequestId kFirstSet = 1 << 8 | 1;
  EXPECT_TRUE(writer.hear(Done{}, kFirstSet).ok());
  EXPECT_FALSE(writer.hear(Error{Code::kResourceExhausted, "full"}, kFirstSet).ok());
}

// ---- Steady checks ------------------------------------------------------------------------------

TEST(LeafCheckTest, ASteadyCheckOfAMissingKeyStaysOnTheHost) {
  LeafScript script;
  const ClientId client = script.join({}, Space::kTorch);
  const std::string key = "/exception_dump";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(script.answer(client, Check{{key}}), "#0");
  script.forwarded();
  const std::uint64_t before = script.direct.engine.requests();
  for (int i = 0; i < 600; ++i) EXPECT_EQ(script.answer(client, Check{{key}}), "#0");
  EXPECT_EQ(script.forwarded(), 0u);
  EXPECT_EQ(script.direct.engine.requests(), before);
  // The first rank that fails says so.
  script.at_the_store(Set{key, "3"}, Space::kTorch);
  script.settle();
  EXPECT_EQ(script.answer(client, Check{{key}}), "#1");
  EXPECT_EQ(script.answer(client, Check{{key}}), "#1");
}

TEST(LeafCheckTest, WhoSetsTheKeyHereSeesItAtOnce) {
  LeafScript script;
  const ClientId client = script.join({}, Space::kTorch);
  for (int i = 0; i < 6; ++i) script.answer(client, Check{{"k"}});
  const RequestId set = script.ask(client, Set{"k", "1"});
  const RequestId check = script.ask(client, Check{{"k"}});
  script.settle();
  EXPECT_EQ(script.word(set), "done");
  EXPECT_EQ(script.word(check), "#1");
}

// Eight ranks whose heartbeats beat at the same moment.
TEST(LeafCheckTest, ChecksAtTheSameMomentFollowOnce) {
  for (const bool first_leaves : {false, true}) {
    LeafScript script;
    std::vector<ClientId> ranks;
    for (int rank = 0; rank < 8; ++rank) ranks.push_back(script.join({}, Space::kTorch));
    for (const ClientId rank : ranks) script.ask(rank, Check{{"k"}});
    script.settle();
    script.forwarded();
    std::vector<RequestId> checks;
    for (const ClientId rank : ranks) checks.push_back(script.ask(rank, Check{{"k"}}));
    script.up();
    if (first_leaves) script.leaf.leave(ranks.front());
    script.leaf.leave(ranks.back());
    script.settle();
    EXPECT_EQ(script.forwarded(), 1u);
    for (std::size_t i = 1; i + 1 < ranks.size(); ++i) EXPECT_EQ(script.word(checks[i]), "#0");
    EXPECT_EQ(script.word(checks.back()), "-");
  }
}

// The key comes while they ask to be told: nobody may hear that it is missing.
TEST(LeafCheckTest, AKeyThatComesMeanwhileIsSeen) {
  LeafScript script;
  const ClientId first = script.join({}, Space::kTorch);
  const ClientId second = script.join({}, Space::kTorch);
  for (int i = 0; i < 3; ++i) script.answer(first, Check{{"k"}});
  script.ask(first, Check{{"k"}});
  script.at_the_store(Set{"k", "1"}, Space::kTorch);
  const RequestId check = script.ask(second, Check{{"k"}});
  script.settle();
  EXPECT_EQ(script.word(check), "#1");
}

TEST(LeafCheckTest, AQueueOfThatNameEndsItToo) {
  LeafScript script;
  const ClientId client = script.join({}, Space::kTorch);
  for (int i = 0; i < 6; ++i) script.answer(client, Check{{"k"}});
  script.at_the_store(QueuePush{"k", "1"}, Space::kTorch);
  script.settle();
  EXPECT_EQ(script.answer(client, Check{{"k"}}), "#1");
}

// A few checks, as of a script that looks whether something was done, are the store's to answer.
TEST(LeafCheckTest, TheFirstChecksGoUp) {
  LeafScript script;
  const ClientId client = script.join({}, Space::kTorch);
  for (int i = 0; i < 3; ++i) script.answer(client, Check{{"k"}});
  EXPECT_EQ(script.forwarded(), 3u);
  script.at_the_store(Set{"k", "1"}, Space::kTorch);
  const RequestId check = script.ask(client, Check{{"k"}});  // No news has come.
  script.settle();
  EXPECT_EQ(script.word(check), "#1");
}

// ---- Who waits for whom -------------------------------------------------------------------------

TEST(LeafWaitGraphTest, NamesEveryRankBehindALeaf) {
  LeafScript script;
  for (std::uint32_t rank = 0; rank < 3; ++rank) script.ask(script.join(rank), Wait{{"k"}});
  script.join(3);
  script.settle();
  script.pass(2 * kSecond);
  script.settle();
  const std::string text = explain(script.direct.engine.wait_graph(), script.direct.now_ns);
  EXPECT_EQ(text,
            "key 'k': rank 0, rank 1, rank 2 have waited, the longest for 2.0 s; not waiting "
            "for it: rank 3 (silent for 2.0 s, last: connected)");
}

TEST(LeafWaitGraphTest, ACompanionThatGaveUpIsNotNamed) {
  LeafScript script;
  script.ask(script.join(0), Wait{{"k"}});
  const ClientId second = script.join(1);
  const RequestId shared = script.ask(second, Wait{{"k"}});
  script.settle();
  script.pass(2 * kSecond);
  script.settle();
  script.answer(second, Cancel{shared});
  script.pass(2 * kSecond);
  script.settle();
  const std::string text = explain(script.direct.engine.wait_graph(), script.direct.now_ns);
  EXPECT_TRUE(text.starts_with("key 'k': rank 0 has waited for 4.0 s")) << text;
}

TEST(LeafWaitGraphTest, ATorchClientIsAPidOnItsHost) {
  LeafScript script;
  const ClientId client = script.join({}, Space::kTorch, "127.0.0.1:777");
  script.ask(client, Wait{{"k"}});
  script.settle();
  const auto text = [&] {
    return explain(script.direct.engine.wait_graph(), script.direct.now_ns);
  };
  EXPECT_NE(text().find("a client at 10.0.0.2:777"), std::string::npos) << text();
  script.leaf.describe(client, 4711, std::nullopt);
  script.settle();
  EXPECT_NE(text().find("pid 4711 at 10.0.0.2"), std::string::npos) << text();
}

TEST(LeafWaitGraphTest, WhoAsksWhyIsAnsweredByTheStore) {
  LeafScript script;
  script.ask(script.join(0), Wait{{"k"}});
  script.settle();
  EXPECT_TRUE(script.answer(script.join(1), Why{}).starts_with("=key 'k': rank 0 has waited"));
}

// ---- Generations and bad input ------------------------------------------------------------------

TEST(LeafTest, EndsWithItsGeneration) {
  LeafScript script;
  const RequestId wait = script.ask(script.join(0), Wait{{"k"}});
  const RequestId pop = script.ask(script.join(0), QueuePop{"q", kNever});
  script.settle();
  Replies replies;
  script.leaf.begin_generation(1, replies);
  ASSERT_EQ(replies.size(), 2u);
  for (const Reply& reply : replies) EXPECT_EQ(std::get<Error>(reply.body).code, Code::kAborted);
  EXPECT_TRUE(replies[0].request == wait || replies[1].request == wait);
  EXPECT_TRUE(replies[0].request == pop || replies[1].request == pop);
  ClientInfo info;
  EXPECT_EQ(script.leaf.join(info, 1).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(LeafDialect::make(script.direct.engine, 5, "10.0.0.2:1", 1).error().code,
            Code::kFailedPrecondition);
}

TEST(LeafTest, TakesNoMoreWhileMuchIsUnsent) {
  LeafLimits limits;
  limits.unsent_bytes = 1000;
  LeafScript script(limits);
  const ClientId client = script.join(0);
  EXPECT_TRUE(script.leaf.takes_more());
  script.ask(client, Set{"k", std::string(2000, 'x')});
  EXPECT_FALSE(script.leaf.takes_more());
  script.settle();
  EXPECT_TRUE(script.leaf.takes_more());
}

// Each frame that a leaf can send, cut short at every byte and with each byte bent: an error, or
// something that is a frame as well, and never more.
TEST(LeafTest, DamagedFramesAreRefused) {
  LeafScript script;
  const ClientId client = script.join(3, Space::kTorch);
  script.leaf.describe(client, 7, std::nullopt);
  script.ask(client, MultiSet{{{"a", "1"}, {"b", "2"}}});
  script.ask(client, Wait{{"k", "l"}, 5 * kSecond});
  script.ask(client, Get{"g", kNever});
  script.ask(client, Cancel{1, {2}});
  const std::string frames = std::exchange(script.leaf.unsent, {});
  std::size_t refused = 0;
  for (std::size_t at = 4; at < frames.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bent = frames;
      bent[at] = static_cast<char>(bent[at] ^ (1 << bit));
      test::EngineScript direct;
      auto dialect = LeafDialect::make(direct.engine, 0, "10.0.0.2:1", 1).value();
      Replies replies;
      if (!dialect->receive(bent, 1, replies).ok()) ++refused;
      std::string bytes;
      for (const Reply& reply : replies) dialect->reply(reply, bytes);
      dialect.reset();
      EXPECT_EQ(direct.engine.open_requests(), 0u);
    }
  }
  EXPECT_GT(refused, frames.size() / 2);
}

TEST(LeafTest, ADamagedStoreIsLeft) {
  const std::vector<std::string> payloads = {"", "x", std::string(1, '\x7f'), std::string(1, '\1')};
  for (const std::string& payload : payloads) {
    LeafScript script;
    const RequestId get = script.ask(script.join(0), Get{"k", kNever});
    std::string frame;
    append_frame(frame, {0, 1}, payload);
    Replies replies;
    EXPECT_FALSE(script.leaf.receive(frame, 1, replies).ok()) << payload.size();
    EXPECT_EQ(script.word(get), "-");
  }
}

}  // namespace
}  // namespace ivy::store
