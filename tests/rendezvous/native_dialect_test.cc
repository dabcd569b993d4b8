// SPDX-License-Identifier: Apache-2.0
// The native dialect with frames that arrive whole and in pieces.
#include "rendezvous/dialects/native_dialect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "proto/wire/store_wire.h"

namespace ivy::store {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

std::string texts(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) put_text(out, part);
  return out;
}
std::string u8(std::uint8_t value) { return std::string(1, static_cast<char>(value)); }
std::string u32(std::uint32_t value) {
  std::string out;
  put_u32(out, value);
  return out;
}
std::string u64(std::uint64_t value) {
  std::string out;
  put_u64(out, value);
  return out;
}
std::string keys(const std::vector<std::string>& names) {
  return u32(static_cast<std::uint32_t>(names.size())) + texts(names);
}
std::string frame(Op op, std::uint32_t id, const std::string& payload) {
  std::string out;
  append_frame(out, {static_cast<std::uint8_t>(op), id}, payload);
  return out;
}

// Returns a frame that its client may send again.
std::string numbered(Op op, std::uint32_t id, std::uint64_t number, std::uint64_t lowest,
                     const std::string& payload) {
  std::string out;
  append_frame(out, {static_cast<std::uint8_t>(static_cast<std::uint8_t>(op) | kNumberedOp), id},
               u64(number) + u64(lowest) + u8(0) + payload);
  return out;
}

class Clients {
 public:
  // All clients belong to one session.
  Clients() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ClientInfo info;
      info.rank = rank;
      info.session = 9;
      dialects_.push_back(NativeDialect::make(engine, info, 1).value());
    }
  }
  Result<void> feed(std::size_t client, const std::string& bytes, std::size_t cut = 0) {
    const std::size_t piece = cut == 0 ? std::max<std::size_t>(bytes.size(), 1) : cut;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      Replies replies;
      const Result<void> taken =
          dialects_[client]->receive(bytes.substr(at, piece), now_ns, replies);
      deliver(replies);
      if (!taken.ok()) return taken;
      while (dialects_[client]->has_more()) {
        Replies more;
        IVY_CHECK(dialects_[client]->receive({}, now_ns, more));
        deliver(more);
      }
    }
    return {};
  }
  void pass(std::uint64_t ns) {
    now_ns += ns;
    Replies replies;
    engine.advance(now_ns, replies);
    deliver(replies);
  }
  // Returns the frames sent to a client.
  std::vector<WireFrame> take(std::size_t client) {
    WireDecoder decoder(kMaxFrameBytes);
    decoder.feed(out[client]);
    out[client].clear();
    std::vector<WireFrame> frames;
    while (auto next = *decoder.next()) frames.push_back(std::move(*next));
    return frames;
  }

  Engine engine;
  std::uint64_t now_ns = 1;
  std::string out[2];

 private:
  void deliver(const Replies& replies) {
    for (const Reply& reply : replies)
      for (std::size_t i = 0; i < dialects_.size(); ++i)
        if (dialects_[i]->client() == reply.client) dialects_[i]->reply(reply, out[i]);
  }
  std::vector<std::unique_ptr<NativeDialect>> dialects_;
};

struct Exchange {
  Op op;
  std::string request;
  std::uint8_t status;
  std::string reply;  // Not compared for an error.
};

std::vector<Exchange> exchanges() {
  return {
      {Op::kSet, texts({"a", "1"}), 0, ""},
      {Op::kSetOnce, texts({"a", "1"}), 0, ""},
      {Op::kSetOnce, texts({"a", "2"}), 6, ""},
      {Op::kGet, texts({"a"}), 0, texts({"1"})},
      {Op::kGet, texts({"none"}), 5, ""},
      {Op::kWait, u64(kForeverMs) + keys({"a"}), 0, ""},
      {Op::kWaitGet, u64(0) + texts({"a"}), 0, texts({"1"})},
      {Op::kCheck, keys({"a"}), 0, u8(1)},
      {Op::kCheck, keys({"a", "none"}), 0, u8(0)},
      {Op::kAdd, texts({"n"}) + u64(static_cast<std::uint64_t>(-2)), 0,
       u64(static_cast<std::uint64_t>(-2))},
      {Op::kAdd, texts({"n"}) + u64(44), 0, u64(42)},
      {Op::kCompareSet, texts({"c"}) + u8(1) + texts({"x", "y"}), 0, u8(0) + u8(0) + texts({""})},
      {Op::kCompareSet, texts({"c"}) + u8(0) + texts({"", ""}), 0, u8(1) + u8(1) + texts({""})},
      {Op::kCompareSet, texts({"c"}) + u8(1) + texts({"", "y"}), 0, u8(1) + u8(1) + texts({"y"})},
      {Op::kAppend, texts({"a", "23"}), 0, u64(3)},
      {Op::kDelete, texts({"c"}), 0, u8(1)},
      {Op::kDelete, texts({"c"}), 0, u8(0)},
      {Op::kMultiSet, u32(2) + texts({"x", "1", "y", "2"}), 0, ""},
      {Op::kMultiGet, keys({"y", "x"}), 0, texts({"2", "1"})},
      {Op::kMultiGet, keys({"y", "none"}), 5, ""},
      {Op::kQueuePush, texts({"q", "item"}), 0, u64(1)},
      {Op::kQueueLength, texts({"q"}), 0, u64(1)},
      {Op::kQueuePop, u64(0) + texts({"q"}), 0, texts({"item"})},
      {Op::kList, texts({""}) + u32(2) + texts({"a"}), 0, u8(1) + u32(2) + texts({"n", "x"})},
      {Op::kCount, texts({""}), 0, u64(4)},
      {Op::kBarrier, u64(0) + texts({"b"}) + u32(1) + u32(0) + u64(9), 0, u64(1)},
      {Op::kBarrier, u64(0) + texts({"b"}) + u32(1) + u32(1) + u64(9), 3, ""},
      {Op::kPing, texts({"hello"}), 0, texts({"hello"})},
      {Op::kWhy, "", 0, texts({"store: no blocked requests"})},
      {Op::kCancel, u32(12345), 0, ""},
      {Op::kSet, texts({std::string(kMaxKeyBytes + 1, 'k'), ""}), 3, ""},
      {Op::kCheck, u32(kMaxKeysPerRequest + 1), 3, ""},
      {Op::kWait, u64(0) + u32(0xffffffff) + "whatever", 3, ""},
      {Op::kMultiSet, u32(0xffffffff), 3, ""},
  };
}

TEST(NativeDialectTest, ServesEveryRequestInAnyFragments) {
  for (const std::size_t cut : {0, 1, 7}) {
    Clients clients;
    std::string bytes;
    std::uint32_t id = 1;
    for (const Exchange& exchange : exchanges())
      bytes += frame(exchange.op, id++, exchange.request);
    ASSERT_TRUE(clients.feed(0, bytes, cut).ok());
    const std::vector<WireFrame> replies = clients.take(0);
    ASSERT_EQ(replies.size(), exchanges().size());
    for (std::size_t i = 0; i < replies.size(); ++i) {
      const Exchange wanted = exchanges()[i];
      EXPECT_EQ(replies[i].head.id, i + 1);
      EXPECT_EQ(replies[i].head.kind, wanted.status) << "request " << i + 1;
      if (wanted.status == 0) {
        EXPECT_EQ(replies[i].payload, wanted.reply) << "request " << i + 1;
      }
    }
  }
}

TEST(NativeDialectTest, ClosesTheConnectionOnADamagedRequest) {
  const std::vector<std::string> damaged = {
      frame(Op::kSet, 1, texts({"a"})),
      frame(Op::kSet, 1, texts({"a", "b"}) + "x"),
      frame(Op::kGet, 1, u32(5) + "abcd"),
      frame(Op::kAdd, 1, texts({"a"}) + "1234567"),
      frame(Op::kCheck, 1, u32(2) + texts({"a"})),
      frame(Op::kWhy, 1, "x"),
      frame(Op::kCancel, 1, "x"),
      frame(Op::kPing, 1, ""),
      frame(static_cast<Op>(0), 1, ""),
      frame(static_cast<Op>(23), 1, ""),
      numbered(Op::kSet, 1, 0, 0, texts({"a", "b"})),
      numbered(Op::kSet, 1, 1, 0, texts({"a", "b"})),
      numbered(Op::kSet, 1, 1, 2, texts({"a", "b"})),
      numbered(Op::kSet, 1, 1, 1, texts({"a"})),
      numbered(Op::kSet, 1, 1, 1, texts({"a", "b"}) + "x"),
      numbered(Op::kGet, 1, 1, 1, texts({"a"})),
      numbered(Op::kPing, 1, 1, 1, texts({"a"})),
      numbered(Op::kCancel, 1, 1, 1, u32(7)),
      numbered(static_cast<Op>(23), 1, 1, 1, ""),
      frame(static_cast<Op>(static_cast<unsigned>(Op::kSet) | kNumberedOp), 1, "12345678"),
      u32(4) + "1234",
      u32(kMaxFrameBytes + 1),
      std::string("\xff\xff\xff\xff", 4),
  };
  for (const std::string& bytes : damaged) {
    Clients clients;
    EXPECT_FALSE(clients.feed(0, bytes).ok());
    EXPECT_TRUE(clients.feed(1, frame(Op::kPing, 1, texts({""}))).ok())
        << "other connections remain open";
  }
}

TEST(NativeDialectTest, ExecutesANumberedRequestOnce) {
  struct Row {
    Op op;
    std::string request;
    std::uint8_t status;
    std::string reply;
  };
  const std::vector<Row> rows = {
      {Op::kSet, texts({"a", "1"}), 0, ""},
      {Op::kSetOnce, texts({"once", "1"}), 0, ""},
      {Op::kSetOnce, texts({"once", "2"}), 6, ""},
      {Op::kMultiSet, u32(2) + texts({"x", "1", "y", "2"}), 0, ""},
      {Op::kDelete, texts({"a"}), 0, u8(1)},
      {Op::kDelete, texts({"a"}), 0, u8(0)},
      {Op::kSet, texts({std::string(kMaxKeyBytes + 1, 'k'), ""}), 3, ""},
  };
  for (const std::size_t cut : {0, 1, 7}) {
    Clients clients;
    const auto all = [&](std::uint32_t first_id) {
      std::string bytes;
      for (std::size_t i = 0; i < rows.size(); ++i)
        bytes += numbered(rows[i].op, first_id + static_cast<std::uint32_t>(i), i + 1, 1,
                          rows[i].request);
      return bytes;
    };
    ASSERT_TRUE(clients.feed(0, all(1), cut).ok());
    std::vector<WireFrame> first = clients.take(0);
    ASSERT_EQ(first.size(), rows.size());
    const std::string others = frame(Op::kSet, 1, texts({"a", "new"})) +
                               frame(Op::kDelete, 2, texts({"once"})) +
                               frame(Op::kMultiSet, 3, u32(2) + texts({"x", "new", "y", "new"}));
    ASSERT_TRUE(clients.feed(1, others).ok());
    clients.take(1);
    // Repeats the requests over another connection, with other frame ids.
    ASSERT_TRUE(clients.feed(1, all(100), cut).ok());
    const std::vector<WireFrame> again = clients.take(1);
    ASSERT_EQ(again.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(first[i].head.kind, rows[i].status) << "request " << i + 1;
      EXPECT_EQ(again[i].head.id, 100 + i);
      EXPECT_EQ(again[i].head.kind, first[i].head.kind) << "request " << i + 1;
      EXPECT_EQ(again[i].payload, first[i].payload) << "request " << i + 1;
      if (rows[i].status == 0) {
        EXPECT_EQ(again[i].payload, rows[i].reply) << "request " << i + 1;
      }
    }
    ASSERT_TRUE(clients
                    .feed(0, frame(Op::kMultiGet, 1, keys({"a", "x", "y"})) +
                                 frame(Op::kCheck, 2, keys({"once"})))
                    .ok());
    const std::vector<WireFrame> left = clients.take(0);
    EXPECT_EQ(left.at(0).payload, texts({"new", "new", "new"}));
    EXPECT_EQ(left.at(1).payload, u8(0));
    // A late copy of a request whose answer the client has already acknowledged.
    ASSERT_TRUE(clients.feed(0, numbered(Op::kSet, 1, 9, 9, texts({"b", "9"}))).ok());
    ASSERT_TRUE(clients.feed(1, numbered(Op::kSet, 1, 8, 1, texts({"b", "8"}))).ok());
    EXPECT_EQ(clients.take(1).at(0).head.kind, 1);
    clients.take(0);
    ASSERT_TRUE(clients.feed(0, frame(Op::kGet, 1, texts({"b"}))).ok());
    EXPECT_EQ(clients.take(0).at(0).payload, texts({"9"}));
  }
}

TEST(NativeDialectTest, ServesOthersWhileAClientWaits) {
  Clients clients;
  ASSERT_TRUE(clients
                  .feed(0, frame(Op::kWaitGet, 1, u64(1000) + texts({"k"})) +
                               frame(Op::kPing, 2, texts({"x"})))
                  .ok());
  EXPECT_EQ(clients.take(0).at(0).head.id, 2u);
  ASSERT_TRUE(clients.feed(1, frame(Op::kSet, 1, texts({"k", "v"}))).ok());
  EXPECT_EQ(clients.take(0).at(0).payload, texts({"v"}));
}

TEST(NativeDialectTest, ReadsTimeoutsInMilliseconds) {
  Clients clients;
  ASSERT_TRUE(clients.feed(0, frame(Op::kWait, 1, u64(1500) + keys({"k"}))).ok());
  clients.pass(kSecond + kSecond / 2 - 1);
  EXPECT_TRUE(clients.out[0].empty());
  clients.pass(1);
  const WireFrame reply = clients.take(0).at(0);
  EXPECT_EQ(reply.head.kind, 4);
  EXPECT_EQ(reply.payload, texts({"waited 1.5 s for key k; not waiting for it: rank 1 (silent for "
                                  "1.5 s, last: connected)"}));
  ASSERT_TRUE(clients.feed(0, frame(Op::kWait, 2, u64(kForeverMs - 1) + keys({"k"}))).ok());
  clients.pass(1'000'000 * kSecond);
  EXPECT_TRUE(clients.out[0].empty());
}

TEST(NativeDialectTest, CancelAnswersTheRequestFirst) {
  const std::map<Op, std::string> fields = {
      {Op::kWait, keys({"k"})},
      {Op::kWaitGet, texts({"k"})},
      {Op::kQueuePop, texts({"k"})},
      {Op::kBarrier, texts({"k"}) + u32(2) + u32(0) + u64(0)},
  };
  Clients clients;
  for (const Command& command : kCommands) {
    const Op op = command.waits;
    if (op == Op::kNone || op == Op::kWatch) continue;
    ASSERT_TRUE(fields.contains(op)) << "add the fields of " << command.name;
    ASSERT_TRUE(clients.feed(0, frame(op, 7, u64(kForeverMs) + fields.at(op))).ok());
    ASSERT_TRUE(clients.feed(0, frame(Op::kCancel, 8, u32(7))).ok());
    const std::vector<WireFrame> replies = clients.take(0);
    ASSERT_EQ(replies.size(), 2u);
    EXPECT_EQ(replies[0].head.id, 7u);
    EXPECT_EQ(replies[0].head.kind, 1);
    EXPECT_EQ(replies[1].head.id, 8u);
    EXPECT_EQ(replies[1].head.kind, 0);
  }
  EXPECT_EQ(clients.engine.open_requests(), 0u);
}

TEST(NativeDialectTest, WatchesUntilCancelled) {
  Clients clients;
  ASSERT_TRUE(clients.feed(0, frame(Op::kWatch, 5, texts({"a/"}))).ok());
  ASSERT_TRUE(clients.feed(1, frame(Op::kSet, 1, texts({"a/1", "v"}))).ok());
  ASSERT_TRUE(clients.feed(1, frame(Op::kDelete, 1, texts({"a/1"}))).ok());
  ASSERT_TRUE(clients.feed(0, frame(Op::kCancel, 6, u32(5))).ok());
  ASSERT_TRUE(clients.feed(1, frame(Op::kSet, 1, texts({"a/1", "v"}))).ok());
  const std::vector<WireFrame> replies = clients.take(0);
  ASSERT_EQ(replies.size(), 4u);
  EXPECT_EQ(replies[0].payload, "");
  EXPECT_EQ(replies[1].payload, u8(1) + texts({"a/1", "v"}));
  EXPECT_EQ(replies[2].payload, u8(2) + texts({"a/1", ""}));
  EXPECT_EQ(replies[3].head.id, 6u);
}

TEST(NativeDialectTest, ServesALongPipelineInTurns) {
  Engine engine;
  auto dialect = NativeDialect::make(engine, {}, 1).value();
  std::string bytes = frame(Op::kSet, 1, texts({"a", std::string(kMaxValueBytes, 'v')}));
  for (std::uint32_t i = 0; i < 1000; ++i) bytes += frame(Op::kGet, 2 + i, texts({"a"}));
  Replies replies;
  ASSERT_TRUE(dialect->receive(bytes, 1, replies).ok());
  EXPECT_LT(replies.size(), 4u);
  EXPECT_TRUE(dialect->has_more());
  std::size_t count = replies.size();
  while (dialect->has_more()) {
    replies.clear();
    ASSERT_TRUE(dialect->receive({}, 1, replies).ok());
    EXPECT_LT(replies.size(), 4u);
    count += replies.size();
  }
  EXPECT_EQ(count, 1001u);
}

}  // namespace
}  // namespace ivy::store
