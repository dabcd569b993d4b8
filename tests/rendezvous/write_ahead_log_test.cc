// The log's bytes, and what can be had from them after any accident.
#include "rendezvous/log/write_ahead_log.h"

#include <gtest/gtest.h>

#include <random>

#include "rendezvous/engine/effect.h"
#include "tests/rendezvous/engine_fixture.h"
#include "tests/rendezvous/journal_book.h"

namespace ivy::store {
namespace {

using test::contents_of;
using test::EngineScript;
using test::JournalBook;

TEST(WriteAheadLogTest, ChecksumIsTheOneOfTheStandard) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(WriteAheadLogTest, HeadIsReadBackAndItsDamageIsSeen) {
  const LogHead head{std::string(32, 'a'), std::string(16, '\x07')};
  const std::string bytes = encode_log_head(head);
  ASSERT_EQ(bytes.size(), kLogHeadBytes);
  const Result<LogHead> read = decode_log_head(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->job_id, head.job_id);
  EXPECT_EQ(read->epoch, head.epoch);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << (at % 8));
    EXPECT_FALSE(decode_log_head(flipped).ok()) << at;
    EXPECT_FALSE(decode_log_head(bytes.substr(0, at)).ok()) << at;
  }
}

// A short life with every kind of effect, and what the engine held after each of its records.
struct Life {
  Life() {
    script.engine.journal_to(&book);
    states.push_back(contents_of(script.engine));
    const ClientId a = script.join(0);
    const ClientId b = script.join(1);
    const ClientId torch = script.join(2, Space::kTorch);
    const ClientId repeating = script.join(3, Space::kNative, 9);
    ask(a, Set{"key", "value"});
    ask(a, Set{"key", "longer than before"});
    ask(torch, Set{"key", "torch's own"});
    ask(a, Add{"n", 41});
    ask(b, Add{"n", 1});
    ask(b, CompareSet{"n", "42", "x"});
    ask(b, Append{"text", "ab"});
    ask(b, Append{"text", std::string("\0cd", 3)});
    ask(a, MultiSet{{{"m1", "1"}, {"m2", "2"}, {"m1", "3"}}});
    ask(a, QueuePush{"q", "one"});
    ask(b, QueuePush{"q", "two"});
    ask(a, QueuePop{"q", std::nullopt});
    ask(b, QueuePop{"empty", kNever});
    ask(a, QueuePush{"empty", "goes at once to who waits"});
    ask(a, Delete{"key"});
    ask(a, Barrier{"b", 2, 0, 7, kNever});
    ask(b, Barrier{"b", 2, 1, 8, kNever});
    ask(a, Set{"once", "1", true});
    ask(torch, AddAndWait{"n", 2});
    ask(repeating, Set{"r", "1", false, {1, 1, false}});
    ask(repeating, Set{"r", "1", true, {2, 1, false}});  // Changes nothing.
    ask(repeating, MultiSet{{{"r", "3"}, {"s", "3"}}, {3, 1, false}});
    ask(repeating, Delete{"s", {4, 3, false}});
    ask(repeating, Delete{"s", {5, 3, false}});
    script.begin_generation(1);
    note();
    ask(script.join(0), Set{"next", ""});
  }

  void ask(ClientId client, Request request) {
    script.ask(client, std::move(request));
    note();
  }
  void note() {
    EXPECT_LE(book.records.size(), states.size()) << "one request, one record";
    if (book.records.size() == states.size()) states.push_back(contents_of(script.engine));
  }

  EngineScript script;
  JournalBook book;
  std::vector<std::string> states;  // states[n]: after n records.
};

std::string log_of(const std::vector<std::string>& records) {
  std::string bytes;
  std::uint64_t sequence = 0;
  for (const std::string& record : records) append_record(bytes, ++sequence, record);
  return bytes;
}

struct Recovered {
  std::string contents;
  std::size_t records = 0;
  LogReader::End end = LogReader::End::kClean;
  std::uint64_t good_bytes = 0;
};

Recovered recover(std::string_view bytes, std::size_t piece = ~std::size_t{0}) {
  LogReader reader;
  Engine engine;
  while (true) {
    while (const auto effects = reader.next()) EXPECT_TRUE(engine.replay(*effects).ok());
    if (bytes.empty()) break;
    reader.feed(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return {contents_of(engine), reader.records(), reader.end(), reader.good_bytes()};
}

TEST(WriteAheadLogTest, ReplayGivesTheSameContents) {
  const Life life;
  ASSERT_EQ(life.states.size(), life.book.records.size() + 1);
  ASSERT_GE(life.book.records.size(), 19u);
  const std::string log = log_of(life.book.records);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, log.size()}) {
    const Recovered recovered = recover(log, piece);
    EXPECT_EQ(recovered.contents, life.states.back());
    EXPECT_EQ(recovered.end, LogReader::End::kClean);
    EXPECT_EQ(recovered.good_bytes, log.size());
  }
}

// What is repeated to another process is known there, from the log and from a log written anew.
TEST(WriteAheadLogTest, AnswersAreKept) {
  struct Row {
    const char* what;
    Request request;
    const char* answer;
  };
  const std::vector<Row> rows = {
      {"heard", Set{"r", "late", false, {2, 1, true}}, "!1"},
      {"multi_set", MultiSet{{{"r", "3"}, {"s", "3"}}, {3, 3, true}}, "done"},
      {"delete", Delete{"s", {4, 3, true}}, "#1"},
      {"a delete that changed nothing, for the first time", Delete{"s", {5, 3, true}}, "#1"},
      {"never sent", Set{"t", "1", false, {6, 3, false}}, "done"},
  };
  EngineScript script;
  JournalBook book;
  script.engine.journal_to(&book);
  const ClientId client = script.join(0, Space::kNative, 9);
  script.ask(client, Set{"r", "1", false, {1, 1, false}});
  script.ask(client, Set{"r", "2", false, {2, 1, false}});
  script.ask(client, MultiSet{{{"r", "3"}, {"s", "3"}}, {3, 3, false}});
  EXPECT_EQ(script.answer(client, Delete{"s", {4, 3, false}}), "#1");
  EXPECT_EQ(script.answer(client, Delete{"s", {5, 3, false}}), "#0");
  const ClientId other = script.join(1);
  script.ask(other, Set{"s", "of another"});
  for (const std::size_t piece : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20}) {
    std::vector<std::string> records = book.records;
    SnapshotCursor cursor;
    if (piece > 0) records.clear();
    while (piece > 0 && !cursor.done()) {
      ASSERT_LT(records.size(), 100u);
      script.engine.write_snapshot(cursor, piece, records);
    }
    EngineScript next;
    for (const std::string& record : records) ASSERT_TRUE(next.engine.replay(record).ok());
    const ClientId again = next.join(0, Space::kNative, 9);
    for (const Row& row : rows)
      EXPECT_EQ(next.answer(again, row.request), row.answer) << row.what << ", " << piece;
    EXPECT_EQ(next.answer(again, Get{"r", {}}), "=3");
  }
  // Not those of the generation before.
  script.begin_generation(1);
  EngineScript next;
  for (const std::string& record : book.records) ASSERT_TRUE(next.engine.replay(record).ok());
  EXPECT_EQ(next.answer(next.join(0, Space::kNative, 9), Delete{"s", {4, 3, true}}), "#0");
}

TEST(WriteAheadLogTest, EveryCutGivesAPrefix) {
  const Life life;
  const std::string log = log_of(life.book.records);
  std::size_t whole = 0;
  std::size_t end_of_next = kRecordHeadBytes + life.book.records[0].size();
  for (std::size_t cut = 0; cut <= log.size(); ++cut) {
    if (cut == end_of_next) {
      whole += 1;
      if (whole < life.book.records.size())
        end_of_next += kRecordHeadBytes + life.book.records[whole].size();
    }
    const Recovered recovered = recover(std::string_view(log).substr(0, cut));
    EXPECT_EQ(recovered.records, whole) << cut;
    EXPECT_EQ(recovered.contents, life.states[whole]) << cut;
    EXPECT_EQ(recovered.end,
              recovered.good_bytes == cut ? LogReader::End::kClean : LogReader::End::kCutOff)
        << cut;
  }
  EXPECT_EQ(whole, life.book.records.size());
}

TEST(WriteAheadLogTest, EveryFlippedBitStopsThere) {
  const Life life;
  const std::string log = log_of(life.book.records);
  std::size_t hurt = 0;
  std::size_t end_of_hurt = kRecordHeadBytes + life.book.records[0].size();
  for (std::size_t at = 0; at < log.size(); ++at) {
    if (at == end_of_hurt) end_of_hurt += kRecordHeadBytes + life.book.records[++hurt].size();
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = log;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
      const Recovered recovered = recover(flipped);
      EXPECT_EQ(recovered.records, hurt) << at << " " << bit;
      EXPECT_EQ(recovered.contents, life.states[hurt]) << at << " " << bit;
      EXPECT_EQ(recovered.end, LogReader::End::kDamaged) << at << " " << bit;
    }
  }
}

TEST(WriteAheadLogTest, ARecordThatIsLostDoubledOrOfZerosIsDamage) {
  const Life life;
  const std::string first = log_of({life.book.records[0]});
  std::string third;
  append_record(third, 3, life.book.records[2]);
  for (const std::string& bytes : {first + third, first + first, first + std::string(40, '\0')}) {
    const Recovered recovered = recover(bytes);
    EXPECT_EQ(recovered.records, 1u);
    EXPECT_EQ(recovered.end, LogReader::End::kDamaged);
  }
}

TEST(WriteAheadLogTest, HostileEffectsAreRefused) {
  const Life life;
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    Engine engine;
    for (const std::string& record : life.book.records) {
      std::string changed = record;
      changed[random() % changed.size()] = static_cast<char>(random());
      if (random() % 4 == 0) changed.resize(random() % changed.size());
      if (!engine.replay(changed).ok()) break;  // Never a crash; ASan looks on.
    }
  }
  Engine engine;
  const auto refused = [&](const Effect& effect) {
    std::string bytes;
    append_effect(bytes, effect);
    return !engine.replay(bytes).ok();
  };
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  EXPECT_TRUE(refused({EffectKind::kPut, Space::kNative, long_key, "v", 0, 0, {}}));
  EXPECT_TRUE(refused({EffectKind::kAppend, Space::kNative, "k", "v", 0, 0, {}}));
  EXPECT_TRUE(refused({EffectKind::kErase, Space::kNative, "k", {}, 0, 0, {}}));
  EXPECT_TRUE(refused({EffectKind::kPop, Space::kNative, "k", {}, 0, 0, {}}));
  EXPECT_TRUE(refused({EffectKind::kBarrier, Space::kNative, "b", {}, 1, 1, {{0, 1}, {1, 1}}}));
  EXPECT_FALSE(engine.replay(std::string("\x09\x00", 2)).ok());
  EXPECT_EQ(engine.key_count(), 0u);
}

TEST(WriteAheadLogTest, WithoutRoomWritesAreRefusedAndNothingChanges) {
  EngineScript script;
  JournalBook book;
  script.engine.journal_to(&book);
  const ClientId client = script.join(0);
  EXPECT_EQ(script.answer(client, Set{"k", "v"}), "done");
  EXPECT_EQ(script.answer(client, QueuePush{"q", "v"}), "#1");
  EXPECT_EQ(script.answer(client, Barrier{"there", 1, 0, 0, kNever}), "#1");
  const std::string before = contents_of(script.engine);
  book.room = 0;
  const std::vector<Request> writes = {Set{"k", "w"},
                                       Set{"new", "w"},
                                       Add{"n", 1},
                                       CompareSet{"k", "v", "w"},
                                       Append{"k", "w"},
                                       Append{"new", "w"},
                                       MultiSet{{{"a", "1"}}},
                                       QueuePush{"q", "w"},
                                       Barrier{"b", 1, 0, 0, kNever},
                                       AddAndWait{"n", 1}};
  for (const Request& write : writes)
    EXPECT_EQ(script.answer(client, write), "!8") << write.index();
  EXPECT_EQ(contents_of(script.engine), before);
  EXPECT_EQ(script.answer(client, Get{"k", std::nullopt}), "=v");
  // What takes away has some room of its own, and is refused as well when that is used up.
  const std::vector<std::pair<Request, const char*>> takes = {
      {QueuePop{"q", std::nullopt}, "=v"},
      {Delete{"k"}, "#1"},
      {Barrier{"there", 1, 0, 0, kNever}, "#2"}};
  book.last_room = 0;
  for (const auto& [take, answer] : takes) EXPECT_EQ(script.answer(client, take), "!8");
  EXPECT_EQ(script.answer(client, QueuePop{"q", std::nullopt, true}), "!8");
  EXPECT_EQ(contents_of(script.engine), before);
  EXPECT_EQ(script.engine.open_requests(), 0u);
  EXPECT_EQ(book.records.size(), 3u);
  book.last_room = 1u << 20;
  for (const auto& [take, answer] : takes) EXPECT_EQ(script.answer(client, take), answer);
  EXPECT_EQ(test::contents_after(book.records), contents_of(script.engine));
}

// Who comes last to a barrier is refused: the others wait on, and the round is whole when it comes
// again.
TEST(WriteAheadLogTest, WithoutRoomABarrierWaitsForRoom) {
  EngineScript script;
  JournalBook book;
  script.engine.journal_to(&book);
  const RequestId first = script.ask(script.join(0), Barrier{"b", 2, 0, 5, kNever});
  book.last_room = 0;
  const ClientId last = script.join(1);
  EXPECT_EQ(script.answer(last, Barrier{"b", 2, 1, 7, kNever}), "!8");
  EXPECT_TRUE(script.waits(first));
  book.last_room = 1u << 20;
  EXPECT_EQ(script.answer(last, Barrier{"b", 2, 1, 7, kNever}), "#1");
  EXPECT_EQ(script.word(first), "#1");
}

// An effect tells the calls of the round before, however small the next one is to be.
TEST(WriteAheadLogTest, ABarrierThatShrinksAsksForRoomForItsPast) {
  EngineScript script;
  JournalBook book;
  script.engine.journal_to(&book);
  const ClientId client = script.join(0);
  for (std::uint32_t member = 0; member < 100; ++member)
    script.ask(client, Barrier{"b", 100, member, member + 1, kNever});
  book.room = 1000;
  EXPECT_EQ(script.answer(client, Barrier{"b", 1, 0, 7, kNever}), "!8");
  book.room = ~std::size_t{0};
  EXPECT_EQ(script.answer(client, Barrier{"b", 1, 0, 7, kNever}), "#2");
}

TEST(WriteAheadLogTest, ALogIsWrittenAnewWhenMostOfItIsPast) {
  EXPECT_FALSE(is_worth_compacting(1 << 20, 0));
  EXPECT_TRUE(is_worth_compacting(65u << 20, 1 << 20));
  EXPECT_FALSE(is_worth_compacting(65u << 20, 60u << 20));
}

}  // namespace
}  // namespace ivy::store
