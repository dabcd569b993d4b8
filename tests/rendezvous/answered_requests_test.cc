// SPDX-License-Identifier: Apache-2.0
// The store's memory of the answers that it gave to each session.
#include "rendezvous/engine/answered_requests.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy::store {
namespace {

using Known = AnsweredRequests::Known;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMinute = 60 * kSecond;

// Returns the lookup of one request as a word: "new", "past" and so on, or the remembered answer. A
// new request is answered, with "done" for an odd number and with the number itself for an even
// one.
class Memory {
 public:
  explicit Memory(AnsweredRequests::Limits limits = {}) : answered(limits) { answered.advance(1); }
  std::string ask(SessionId session, std::uint64_t number, std::uint64_t lowest,
                  bool again = false) {
    const AnsweredRequests::Finding found = answered.find(session, {number, lowest, again});
    switch (found.known) {
      case Known::kNew:
        answered.remember(
            session, number,
            number % 2 == 1 ? AnsweredRequests::Answer(Done{})
                            : AnsweredRequests::Answer(Number{static_cast<std::int64_t>(number)}));
        return "new";
      case Known::kAnswered:
        if (const auto* value = std::get_if<Number>(found.answer))
          return "#" + std::to_string(value->value);
        if (const auto* error = std::get_if<Error>(found.answer)) return "!" + error->message;
        return "done";
      case Known::kPast:
        return "past";
      case Known::kUnclear:
        return "unclear";
      case Known::kTooMany:
        return "too many";
    }
    return "?";
  }

  AnsweredRequests answered;
};

TEST(AnsweredRequestsTest, TreatsARequestAsNewOnce) {
  struct Row {
    SessionId session;
    std::uint64_t number;
    std::uint64_t lowest;
    const char* word;
    std::size_t kept;  // Afterwards, over all sessions.
  };
  const std::vector<Row> rows = {
      {7, 1, 1, "new", 1},  {7, 1, 1, "done", 1}, {8, 1, 1, "new", 2}, {7, 2, 1, "new", 3},
      {7, 2, 1, "#2", 3},   {7, 1, 1, "done", 3},  // Several are open at once
      {7, 5, 1, "new", 4},  {7, 3, 1, "new", 5},   // in any order.
      {7, 5, 1, "done", 5}, {7, 6, 5, "new", 3},   // The client received 1, 2 and 3.
      {7, 3, 1, "past", 3}, {7, 4, 1, "past", 3},  // Late copies of those,
      {7, 4, 4, "past", 3},                        // and of one that was never answered.
      {7, 5, 5, "done", 3}, {7, 6, 5, "#6", 3},   {7, 7, 7, "new", 2}, {8, 1, 1, "done", 2},
  };
  Memory memory;
  memory.answered.begin(7);
  memory.answered.begin(8);
  int line = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(memory.ask(row.session, row.number, row.lowest), row.word) << "row " << ++line;
    EXPECT_EQ(memory.answered.answers(), row.kept) << "row " << line;
  }
}

TEST(AnsweredRequestsTest, RemembersErrors) {
  Memory memory;
  memory.answered.begin(7);
  ASSERT_EQ(memory.answered.find(7, {1, 1, false}).known, Known::kNew);
  memory.answered.remember(7, 1, Error{Code::kAlreadyExists, "it is there"});
  EXPECT_EQ(memory.ask(7, 1, 1, true), "!it is there");
}

TEST(AnsweredRequestsTest, KeepsASessionForAWhile) {
  Memory memory;
  memory.answered.begin(7);
  EXPECT_EQ(memory.ask(7, 1, 1), "new");
  memory.answered.advance(60 * kMinute);
  EXPECT_EQ(memory.ask(7, 1, 1, true), "done") << "its connection is open";
  memory.answered.begin(7);
  memory.answered.end(7);
  memory.answered.advance(120 * kMinute);
  EXPECT_EQ(memory.ask(7, 1, 1, true), "done") << "one of its connections is open";
  memory.answered.end(7);
  memory.answered.advance(130 * kMinute - 1);
  EXPECT_EQ(memory.answered.sessions(), 1u);
  memory.answered.begin(7);
  EXPECT_EQ(memory.ask(7, 1, 1, true), "done");
  memory.answered.advance(140 * kMinute);
  EXPECT_EQ(memory.answered.sessions(), 1u) << "it reconnected";
  memory.answered.end(7);
  memory.answered.advance(150 * kMinute);
  EXPECT_EQ(memory.answered.sessions(), 0u);
  EXPECT_EQ(memory.answered.answers(), 0u);
}

TEST(AnsweredRequestsTest, ForgetsClientsWithoutReplies) {
  Memory memory;
  memory.answered.begin(7);
  memory.answered.end(7);
  EXPECT_EQ(memory.answered.sessions(), 0u);
  memory.answered.end(7);
  memory.answered.begin(8);
  EXPECT_EQ(memory.ask(8, 1, 1), "new");
  memory.answered.clear();
  EXPECT_EQ(memory.answered.sessions(), 0u);
  memory.answered.end(8);
  EXPECT_EQ(memory.answered.answers(), 0u);
}

TEST(AnsweredRequestsTest, DropsTheOldestSessionBeyondTheLimitAndReportsIt) {
  Memory memory({4, 3, 10 * kMinute});
  for (const SessionId session : {7, 8}) {
    memory.answered.begin(session);
    EXPECT_EQ(memory.ask(session, 1, 1), "new");
    EXPECT_EQ(memory.ask(session, 2, 1), "new");
    memory.answered.advance(session * kSecond);
    memory.answered.end(session);
  }
  memory.answered.begin(9);
  EXPECT_EQ(memory.ask(9, 1, 1), "new");
  EXPECT_EQ(memory.answered.answers(), 3u) << "session 7 was dropped";
  memory.answered.begin(8);
  EXPECT_EQ(memory.ask(8, 1, 1, true), "done");
  EXPECT_EQ(memory.ask(8, 3, 1, true), "new") << "session 8 was never dropped, so this one is new";
  EXPECT_EQ(memory.ask(8, 4, 1), "too many") << "within one session";
  EXPECT_EQ(memory.ask(9, 2, 1), "too many") << "all sessions are connected";
  EXPECT_EQ(memory.ask(9, 2, 2), "new") << "the client received the first answer";
  memory.answered.end(8);
  memory.answered.begin(7);
  EXPECT_EQ(memory.ask(7, 1, 1, true), "unclear");
  EXPECT_EQ(memory.ask(7, 3, 1), "new") << "this one was not sent before";
  EXPECT_EQ(memory.ask(7, 3, 1, true), "done");
}

}  // namespace
}  // namespace ivy::store
