// SPDX-License-Identifier: Apache-2.0
// Every opcode of torch's protocol, with requests that arrive whole and in pieces. The reply bytes
// are the same.
#include <gtest/gtest.h>

#include "tests/rendezvous/torch_script.h"

namespace ivy::store {
namespace {

using test::keys;
using test::number;
using test::opcode;
using test::text;
using test::TorchScript;
using test::word32;

const std::string kHello = opcode(0) + word32(0x3C85F7CE);
const std::string kYes("\0", 1);  // Ready, or stop waiting.
const std::string kNo("\1", 1);   // Not ready, or wait cancelled.

std::string set(const std::string& key, const std::string& value) {
  return opcode(1) + text(key) + text(value);
}
std::string compare_set(const std::string& key, const std::string& expected,
                        const std::string& desired) {
  return opcode(2) + text(key) + text(expected) + text(desired);
}
std::string get(const std::string& key) { return opcode(3) + text(key); }
std::string add(const std::string& key, std::int64_t delta) {
  return opcode(4) + text(key) + number(delta);
}
std::string check(const std::vector<std::string>& names) { return opcode(5) + keys(names); }
std::string wait(const std::vector<std::string>& names) { return opcode(6) + keys(names); }
std::string multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = opcode(11) + number(static_cast<std::int64_t>(entries.size()));
  for (const auto& [key, value] : entries) out += text(key) + text(value);
  return out;
}
const std::string kCancel = opcode(12);

struct Step {
  int client;
  std::string bytes;
};
struct Case {
  const char* name;
  std::vector<Step> steps;
  std::map<int, std::string> out;
  std::vector<int> closed = {};
};

// Prevents gtest from printing the bytes of a case.
std::vector<Case> values_in_c() {
  return {
      {"Validate", {{0, ""}}, {}},
      {"SetGet", {{0, set("/a", "v") + get("/a")}}, {{0, text("v")}}},
      {"EmptyAndBinary",
       {{0, set("/a", "") + get("/a") + set("", std::string("\0\xff", 2)) + get("")}},
       {{0, text("") + text(std::string("\0\xff", 2))}}},
      {"SetsPipelined",
       {{0, set("/a", "1") + set("/b", "2") + set("/a", "3") + get("/a") + get("/b")}},
       {{0, text("3") + text("2")}}},
      {"CompareSetMissing",
       {{0, compare_set("/a", "x", "y") + check({"/a"}) + compare_set("/a", "", "1") +
                compare_set("/a", "", "2") + compare_set("/a", "0", "2") +
                compare_set("/a", "1", "2") + get("/a")}},
       {{0, text("x") + kNo + text("1") + text("1") + text("1") + text("2") + text("2")}}},
      {"CompareSetEmptyValue",
       {{0, set("/a", "") + compare_set("/b", "x", "y") + compare_set("/a", "", "1") + get("/a")}},
       {{0, text("x") + text("1") + text("1")}}},
      {"CompareSetWakes",
       {{1, wait({"/a"})}, {0, compare_set("/a", "", "1")}},
       {{0, text("1")}, {1, kYes}}},
      {"GetOfAMissingKeyIsEmpty",
       {{0, get("/a") + set("/a", "v") + get("/a") + opcode(8) + text("/a") + get("/a")}},
       {{0, text("") + text("v") + number(1) + text("")}}},
      {"Add",
       {{0, add("init/", 1) + add("init/", 41) + add("init/", -50) + get("init/")}},
       {{0, number(1) + number(42) + number(-8) + text("-8")}}},
      {"AddToText", {{0, set("/a", "x") + add("/a", 1)}, {1, get("/a")}}, {{1, text("x")}}, {0}},
      {"Check",
       {{0, check({"/a"}) + set("/a", "") + check({"/a"}) + check({"/a", "/b"}) + check({})}},
       {{0, kNo + kYes + kNo + kYes}}},
  };
}

std::vector<Case> waits_in_c() {
  return {
      {"WaitAnsweredAtOnce", {{0, set("/a", "") + wait({"/a"}) + wait({})}}, {{0, kYes + kYes}}},
      {"WaitForMany",
       {{1, wait({"/a", "/b", "/a"})}, {0, set("/a", "")}, {0, multi_set({{"/b", ""}})}},
       {{1, kYes}}},
      {"WaitWokenByAppend",
       {{1, wait({"/a"})}, {0, opcode(9) + text("/a") + text("x")}},
       {{1, kYes}}},
      {"WaitWokenByAdd", {{1, wait({"/a"})}, {0, add("/a", 1)}}, {{0, number(1)}, {1, kYes}}},
      {"RequestsBehindAWait",
       {{1, wait({"/a"}) + get("/a") + set("/b", "2") + get("/b")}, {0, set("/a", "1")}},
       {{1, kYes + text("1") + text("2")}}},
  };
}

std::vector<Case> counts_in_c() {
  return {
      {"Count",
       {{0, opcode(7) + set("/a", "") + add("/b", 1) + opcode(7)}},
       {{0, number(0) + number(1) + number(2)}}},
      {"Delete",
       {{0, opcode(8) + text("/a") + set("/a", "") + opcode(8) + text("/a") + check({"/a"})}},
       {{0, number(0) + number(1) + kNo}}},
      {"Append",
       {{0, opcode(9) + text("/a") + text("12") + opcode(9) + text("/a") + text("3") + get("/a")}},
       {{0, text("123")}}},
      {"MultiGet",
       {{0, multi_set({{"/a", "1"}, {"/b", ""}}) + opcode(10) + keys({"/b", "/a", "/b"}) +
                opcode(10) + keys({})}},
       {{0, text("") + text("1") + text("")}}},
      {"MultiGetMissing", {{0, opcode(10) + keys({"/a"})}}, {}, {0}},
      {"MultiSetAllOrNothing",
       {{0, multi_set({{"/a", "1"}, {"/b", "2"}}).substr(0, 46)}, {1, check({"/a"})}},
       {{1, kNo}}},
      {"MultiSetWithOneWrong",
       {{0, multi_set({{"/a", "1"}, {std::string(kMaxKeyBytes + 1, 'x'), "2"}})},
        {1, check({"/a"})}},
       {{1, kNo}},
       {0}},
      {"MultiSetEmpty", {{0, multi_set({}) + opcode(7)}}, {{0, number(0)}}},
  };
}

std::vector<Case> cancels_in_c() {
  return {
      {"CancelNothing", {{0, kCancel + kCancel}}, {{0, kNo + kNo}}},
      {"CancelBeforeTheKey", {{1, wait({"/a"})}, {1, kCancel}, {0, set("/a", "")}}, {{1, kNo}}},
      {"CancelAfterTheKey",
       {{1, wait({"/a"})}, {0, set("/a", "")}, {1, kCancel}},
       {{1, kYes + kNo}}},
      {"CancelInTheSameBytes", {{1, wait({"/a"}) + kCancel + check({"/a"})}}, {{1, kNo + kNo}}},
      {"WaitAgainAfterCancel",
       {{1, wait({"/a"}) + kCancel + wait({"/a"})}, {0, set("/a", "")}},
       {{1, kNo + kYes}}},
      {"Ping",
       {{0, opcode(13) + word32(0xfffffffe) + opcode(13) + word32(7)}},
       {{0, word32(0xfffffffe) + word32(7)}}},
      {"Queue",
       {{0, opcode(16) + text("/q") + opcode(15) + text("/q") + opcode(14) + text("/q") +
                text("1") + opcode(14) + text("/q") + text("") + opcode(16) + text("/q") +
                check({"/q"}) + opcode(15) + text("/q") + opcode(15) + text("/q") + opcode(15) +
                text("/q") + check({"/q"})}},
       {{0, number(0) + number(0) + number(2) + kYes + number(2) + text("1") + number(1) +
                text("") + number(0) + kNo}}},
      {"QueueWakes", {{1, wait({"/q"})}, {0, opcode(14) + text("/q") + text("1")}}, {{1, kYes}}},
      {"ListKeys",
       {{0, opcode(17) + set("/b", "") + add("init/", 1) + opcode(17)}},
       {{0, number(0) + number(1) + number(2) + text("/b") + text("init/")}}},
      {"Barrier",
       {{0, opcode(18) + text("/x") + number(2)},
        {1, opcode(18) + text("/x") + number(2)},
        {2, opcode(18) + text("/x") + number(2) + get("/x")}},
       {{0, kYes}, {1, kYes}, {2, kYes + text("3")}}},
      {"BarrierCancelled",
       {{0, opcode(18) + text("/x") + number(2)},
        {0, kCancel},
        {1, opcode(18) + text("/x") + number(2)}},
       {{0, kNo}, {1, kYes}}},
  };
}

std::vector<Case> rejections_in_c() {
  return {
      {"SecondGreeting", {{0, kHello}}, {}, {0}},
      {"UnknownOpcode", {{0, opcode(19)}}, {}, {0}},
      {"LongestKey", {{0, set(std::string(kMaxKeyBytes, 'k'), "v") + opcode(7)}}, {{0, number(1)}}},
      {"KeyTooLong", {{0, opcode(3) + number(kMaxKeyBytes + 1)}}, {}, {0}},
      {"ValueTooLong", {{0, opcode(1) + text("/a") + number(kMaxValueBytes + 1)}}, {}, {0}},
      {"Terabytes", {{0, opcode(1) + number(1'300'000'000'000)}}, {}, {0}},
      {"NegativeLength", {{0, opcode(1) + number(-1)}}, {}, {0}},
      {"TooManyKeys", {{0, opcode(6) + number(kMaxKeysPerRequest + 1)}}, {}, {0}},
      {"NegativeCount", {{0, opcode(11) + number(-1)}}, {}, {0}},
  };
}

std::vector<Case> dialect_a() {
  return {
      {"SetGet",
       {{0, add("init/", 1).replace(0, 1, opcode(3)) + opcode(0) + text("/a") + text("v") +
                opcode(2) + text("/a")}},
       {{0, number(1) + text("v")}}},
      {"CompareSet", {{0, opcode(1) + text("/a") + text("") + text("1")}}, {{0, text("1")}}},
      {"WaitCheckCount",
       {{1, opcode(5) + keys({"/a"})},
        {0, opcode(3) + text("/a") + number(4)},
        {1, opcode(4) + keys({"/a"}) + opcode(6)}},
       {{0, number(4)}, {1, kYes + kYes + number(1)}}},
      {"Delete",
       {{0, opcode(3) + text("/a") + number(4) + opcode(8) + text("/a")}},
       {{0, number(4) + number(1)}}},
      {"GetOfAMissingKeyIsEmpty",
       {{0, opcode(2) + text("/a") + opcode(6)}},
       {{0, text("") + number(0)}}},
      // This protocol has no cancel: a client that sends another request has given up its wait and
      // gets no answer to it.
      {"AfterAWaitThatWasGivenUp",
       {{1, opcode(5) + keys({"/a"})},
        {1, opcode(8) + text("/b")},
        {1, opcode(6) + opcode(0) + text("/b") + text("v")},
        {1, opcode(5) + keys({"/c"})},
        {0, opcode(0) + text("/a") + text("1") + opcode(2) + text("/b")},
        {1, opcode(6)}},
       {{0, text("v")}, {1, number(0) + number(0) + number(2)}}},
      {"WatchKey",
       {{1, opcode(7) + text("/a") + opcode(7) + text("/ab")},
        {0, opcode(3) + text("/a") + number(1) + opcode(3) + text("/a") + number(1)},
        {0, opcode(3) + text("/ab") + number(5) + opcode(8) + text("/a")}},
       {{0, number(1) + number(2) + number(5) + number(1)},
        {1, std::string("\3\3", 2) + opcode(1) + text("/a") + text("") + text("1") + opcode(0) +
                text("/a") + text("1") + text("2") + opcode(1) + text("/ab") + text("") +
                text("5") + opcode(2) + text("/a") + text("2") + text("")}}},
      {"Torch21AfterUse",
       {{0, opcode(3) + text("/a") + number(4) + opcode(7) + text("/a")}},
       {{0, number(4)}},
       {0}},
      // Its bytes do not differ from a watch of torch 2.0.
      {"Torch21DeletesFirst", {{0, opcode(7) + text("/a")}}, {{0, "\3"}}},
      {"Torch21Number",
       {{0, opcode(3) + text("/a") + number(4) + opcode(9) + text("/a")}},
       {{0, number(4)}},
       {0}},
      {"Torch21AtOnce", {{0, opcode(9) + text("/a") + text("b")}}, {}, {0}},
      {"Of2023", {{0, word32(0x3C85F7CE) + opcode(3)}}, {}, {0}},
      {"Http", {{0, "GET / HTTP/1.1\r\n\r\n"}}, {}, {0}},
      {"TlsHello", {{0, std::string("\x16\x03\x01\x02\x00", 5)}}, {}, {0}},
      {"WrongMagic", {{0, opcode(0) + "\xce\xf7\x85\x3d" + std::string(64, '\x7f')}}, {}, {0}},
  };
}

void run(const Case& test, std::size_t cut, bool greets) {
  SCOPED_TRACE(std::string(test.name) + ", pieces of " + std::to_string(cut));
  TorchScript script(cut);
  if (greets) {
    for (int client = 0; client < 3; ++client) script.feed(client, kHello);
  }
  for (const Step& step : test.steps) script.feed(step.client, step.bytes);
  for (int client = 0; client < 3; ++client) {
    const bool wanted =
        std::find(test.closed.begin(), test.closed.end(), client) != test.closed.end();
    EXPECT_EQ(script.closed.contains(client), wanted) << script.closed[client];
    const auto out = test.out.find(client);
    EXPECT_TRUE(script.out[client] == (out == test.out.end() ? "" : out->second))
        << "client " << client << " got " << testing::PrintToString(script.out[client]);
  }
}

TEST(TorchDialectTest, ConformsInDialectC) {
  for (const auto& cases :
       {values_in_c(), waits_in_c(), counts_in_c(), cancels_in_c(), rejections_in_c()}) {
    for (const Case& test : cases)
      for (const std::size_t cut : {0, 1, 3, 13}) run(test, cut, true);
  }
}

TEST(TorchDialectTest, ConformsInDialectA) {
  for (const Case& test : dialect_a())
    for (const std::size_t cut : {0, 1, 3, 13}) run(test, cut, false);
}

TEST(TorchDialectTest, LogsARejectedClientInOneLine) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {opcode(9) + text("a"), "torch store: the client is torch 2.1"},
      {word32(0x3C85F7CE) + opcode(3),
       "torch store: the client is a development version of torch from 2023"},
      {"GET /", "torch store: the first byte is 71: this is not a torch store client"},
      {kHello + opcode(1) + number(1'300'000'000'000),
       "torch store: a key of 1300000000000 bytes is longer than 8192"},
      {kHello + opcode(40), "torch store: request number 40 is unknown"},
  };
  for (const auto& [bytes, message] : table) {
    TorchScript script;
    script.feed(0, bytes);
    EXPECT_TRUE(script.closed[0].starts_with(message)) << script.closed[0];
    EXPECT_EQ(script.closed[0].find('\n'), std::string::npos);
  }
}

// torch 2.1 has no watch. Its delete is opcode 7, and its append is opcode 8, which is torch 2.0's
// delete. It sends an append in one piece, expects no answer and may continue. These are the bytes
// of torch 2.1.2.
TEST(TorchDialectTest, DoesNotTreatAnAppendOfTorch21AsADelete) {
  for (const std::string& behind : {text("more"), text(""), text(std::string(1000, 'v')),
                                    text("more") + opcode(5) + keys({"/a"})}) {
    TorchScript script;
    script.feed(0, opcode(0) + text("/a") + text("kept"));
    script.feed(1, opcode(2) + text("/a"));
    script.feed(1, opcode(8) + text("/a") + behind);
    EXPECT_TRUE(script.closed[1].starts_with("torch store: the client is torch 2.1"))
        << script.closed[1];
    script.feed(0, opcode(2) + text("/a"));
    EXPECT_EQ(script.out[0], text("kept")) << behind.size();
  }
}

// The other opcodes that torch 2.1 numbers differently, after requests with equal numbers.
TEST(TorchDialectTest, RejectsTorch21ByName) {
  const std::string multi = keys({"/a"});
  for (const std::string& request : {opcode(7) + text("/a"), opcode(9) + multi,
                                     opcode(10) + number(1) + text("/a") + text("v"), opcode(11)}) {
    TorchScript script;
    script.feed(0, opcode(0) + text("/a") + text("kept"));
    script.feed(0, opcode(2) + text("/a"));
    script.feed(0, request);
    EXPECT_TRUE(script.closed[0].starts_with("torch store: the client is torch 2.1"))
        << static_cast<int>(request[0]) << ": " << script.closed[0];
  }
}

TEST(TorchDialectTest, AcceptsAValueAtTheLimitInPieces) {
  TorchScript script(4096);
  const std::string value(kMaxValueBytes, 'v');
  script.feed(0, kHello + set("/a", value) + opcode(7));
  EXPECT_EQ(script.out[0], number(1));
  EXPECT_TRUE(script.closed.empty());
}

TEST(TorchDialectTest, AcceptsTheMaximumNumberOfKeys) {
  const std::vector<std::string> many(kMaxKeysPerRequest, "/a");
  TorchScript script;
  script.feed(0, kHello + set("/a", "") + wait(many) + check(many));
  EXPECT_EQ(script.out[0], kYes + kYes);
}

// A client that pipelines many requests is served in order, in turns of a bounded size.
TEST(TorchDialectTest, ServesALongPipelineInTurns) {
  Engine engine;
  TorchDialect dialect(engine, 0, "10.0.0.1");
  std::string bytes = kHello + set("/a", std::string(100'000, 'v'));
  for (int i = 0; i < 100; ++i) bytes += get("/a");
  Replies replies;
  ASSERT_TRUE(dialect.receive(bytes, 1, replies).ok());
  std::string out;
  int turns = 0;
  while (true) {
    std::size_t turn_bytes = out.size();
    for (const Reply& reply : replies) ASSERT_TRUE(dialect.reply(reply, out).ok());
    turn_bytes = out.size() - turn_bytes;
    EXPECT_LT(turn_bytes, kTurnBytes + 200'000);
    ++turns;
    if (!dialect.has_more()) break;
    replies.clear();
    ASSERT_TRUE(dialect.receive({}, 1, replies).ok());
  }
  EXPECT_GT(turns, 5);
  EXPECT_EQ(out.size(), 100u * (8 + 100'000));
}

TEST(TorchDialectTest, DoesNotReportAPartialRequestAsMore) {
  Engine engine;
  TorchDialect dialect(engine, 0, "10.0.0.1");
  Replies replies;
  ASSERT_TRUE(dialect.receive(kHello + get("/a").substr(0, 5), 1, replies).ok());
  EXPECT_FALSE(dialect.has_more()) << "the server would loop forever";
}

TEST(TorchDialectTest, HandlesAnAnswerThatCrossesItsCancel) {
  // The key is set, and the client's cancel arrives before the client has read the answer.
  TorchScript script;
  script.feed(1, kHello + wait({"/a"}));
  script.feed(0, kHello + set("/a", ""));
  EXPECT_EQ(script.out[1], kYes);
  script.feed(1, kCancel + get("/a"));
  EXPECT_EQ(script.out[1], kYes + kNo + text(""));
  EXPECT_EQ(script.engine.open_requests(), 0u);
}

// While it waits, torch sends nothing but a cancel.
TEST(TorchDialectTest, BoundsTheBytesAfterAWait) {
  for (const std::string& waits : {wait({"/a"}), opcode(18) + text("/a") + number(2)}) {
    for (const bool is_too_much : {false, true}) {
      Engine engine;
      TorchDialect dialect(engine, 0, "10.0.0.1");
      Replies replies;
      const std::size_t room = kMaxAfterTorchWait - set("/b", "").size();
      const std::string behind = set("/b", std::string(room + (is_too_much ? 1 : 0), 'v'));
      EXPECT_EQ(dialect.receive(kHello + waits + behind, 1, replies).ok(), !is_too_much);
      EXPECT_GE(dialect.kept_bytes(), kMaxAfterTorchWait);
    }
  }
}

TEST(TorchDialectTest, DropsWaitsOfClosedConnections) {
  TorchScript script;
  script.feed(0, kHello + wait({"/a"}));
  EXPECT_EQ(script.engine.open_requests(), 1u);
  script.hang_up(0);
  EXPECT_EQ(script.engine.open_requests(), 0u);
  EXPECT_EQ(script.engine.waiting_bytes(), 0u);
}

TEST(TorchDialectTest, PingReturnsThePid) {
  TorchScript script;
  script.feed(0, kHello + opcode(13) + word32(4321) + wait({"/a"}));
  EXPECT_EQ(script.engine.wait_graph().waiting.at(0).client.pid, 4321u);
}

}  // namespace
}  // namespace ivy::store
