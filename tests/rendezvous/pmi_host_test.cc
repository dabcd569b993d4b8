// SPDX-License-Identifier: Apache-2.0
// PMI-1 in tables: requests and replies, streams in any pieces, barriers of one and of two hosts,
// and other protocols.
#include "rendezvous/dialects/pmi_host.h"

#include <gtest/gtest.h>

namespace ivy::store {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kInit = "cmd=init pmi_version=1 pmi_subversion=1\n";
constexpr const char* kInitDone = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";

// A host and its latest effects. Each connection is numbered by its rank.
struct Host {
  explicit Host(std::vector<std::uint32_t> ranks, std::uint32_t number = 0)
      : host(PmiJob{"job-1", number, std::move(ranks)}) {}

  void come(std::uint32_t rank) {
    host.opened(rank);
    say(rank, "rank " + std::to_string(rank) + "\n");
  }
  // Returns the answer to this connection.
  std::string say(std::uint32_t connection, std::string_view bytes) {
    effects = {};
    host.received(connection, bytes, effects);
    return replies_to(connection);
  }
  std::string replies_to(std::uint32_t connection) const {
    std::string text;
    for (const PmiHost::Bytes& reply : effects.replies)
      if (reply.to == connection) text += reply.bytes;
    return text;
  }

  PmiHost host;
  PmiHost::Effects effects;
};

TEST(PmiHostTest, AnswersEachRequest) {
  Host host({2, 2});
  host.come(1);
  EXPECT_EQ(host.say(1, kInit), kInitDone);
  EXPECT_EQ(host.effects.events, Texts{"joined 1"});
  const std::pair<const char*, const char*> kTable[] = {
      {"cmd=initack pmiid=1", "cmd=initack\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0"},
      {"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"},
      {"cmd=get_appnum", "cmd=appnum appnum=0"},
      {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=job-1"},
      {"cmd=get_universe_size", "cmd=universe_size size=4"},
      {"cmd=put kvsname=job-1 key=k value=v=1 and more", "cmd=put_result rc=0 msg=success"},
      {"cmd=get kvsname=job-1 key=k", "cmd=get_result rc=0 msg=success value=v=1 and more"},
      {"cmd=get kvsname=job-1 key=PMI_process_mapping",
       "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))"},
      {"cmd=get kvsname=job-1 key=none", "cmd=get_result rc=-1 msg=key_not_found value=unknown"},
      {"cmd=put kvsname=job-1 key=PMI_mine value=v", "cmd=put_result rc=-1 msg=key_is_reserved"},
      {"cmd=put kvsname=job-1 key=k value=", "cmd=put_result rc=-1 msg=value_is_empty_or_too_long"},
      {"cmd=put kvsname=job-1 value=v", "cmd=put_result rc=-1 msg=key_is_empty_or_too_long"},
      {"cmd=lookup_name service=s", "cmd=lookup_result rc=-1 msg=not_served"},
      {"cmd=create_kvs", "cmd=create_kvs_result rc=-1 msg=not_served"},
      {"cmd=finalize", "cmd=finalize_ack rc=0"},
  };
  for (const auto& [request, reply] : kTable)
    EXPECT_EQ(host.say(1, std::string(request) + "\n"), std::string(reply) + "\n") << request;
  EXPECT_EQ(host.effects.events, Texts{"left 1"});
}

TEST(PmiHostTest, ReadsStreamsInAnyPieces) {
  const std::string stream = std::string("rank 0\n") + kInit +
                             "cmd=put kvsname=j key=a value=1\ncmd=get kvsname=j key=a\n"
                             "mcmd=spawn\nnprocs=2\ntotspawns=1\nspawnssofar=1\nendcmd\n"
                             "cmd=finalize\n";
  std::string whole;
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    Host host({1});
    host.host.opened(0);
    std::string replies;
    for (std::size_t at = 0; at < stream.size(); at += piece)
      replies += host.say(0, std::string_view(stream).substr(at, piece));
    if (whole.empty()) whole = replies;
    EXPECT_EQ(replies, whole) << "in pieces of " << piece;
  }
  EXPECT_EQ(whole, std::string(kInitDone) +
                       "cmd=put_result rc=0 msg=success\n"
                       "cmd=get_result rc=0 msg=success value=1\n"
                       "cmd=spawn_result rc=-1 msg=not_served\ncmd=finalize_ack rc=0\n");
}

TEST(PmiHostTest, AnswersASpawnOfSeveralProgramsOnce) {
  Host host({1});
  host.come(0);
  EXPECT_EQ(host.say(0, "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nendcmd\n"), "");
  EXPECT_NE(host.say(0, "mcmd=spawn\ntotspawns=2\nspawnssofar=2\nendcmd\n"), "");
  EXPECT_EQ(host.effects.notes.size(), 1u);
}

TEST(PmiHostTest, ExchangesOnlyNewValuesInABarrier) {
  Host a({2, 1}, 0);
  Host b({2, 1}, 1);
  a.come(0);
  a.come(1);
  b.come(2);
  a.say(0, "cmd=put key=from0 value=A b\n");
  a.say(0, "cmd=barrier_in\n");
  EXPECT_FALSE(a.effects.fence.has_value()) << "rank 1 has not arrived";
  a.say(1, "cmd=barrier_in\n");
  ASSERT_TRUE(a.effects.fence.has_value());
  EXPECT_TRUE(a.effects.replies.empty());
  const std::string from_a = *a.effects.fence;
  b.say(2, "cmd=put key=from2 value=C\n");
  b.say(2, "cmd=barrier_in\n");
  const std::string from_b = b.effects.fence.value();
  for (Host* host : {&a, &b}) {
    host->effects = {};
    host->host.fenced({from_a, from_b}, host->effects);
  }
  EXPECT_EQ(a.replies_to(0), "cmd=barrier_out rc=0\n");
  EXPECT_EQ(a.replies_to(1), "cmd=barrier_out rc=0\n");
  EXPECT_EQ(b.replies_to(2), "cmd=barrier_out rc=0\n");
  EXPECT_EQ(a.say(1, "cmd=get key=from2\n"), "cmd=get_result rc=0 msg=success value=C\n");
  EXPECT_EQ(b.say(2, "cmd=get key=from0\n"), "cmd=get_result rc=0 msg=success value=A b\n");
  b.say(2, "cmd=barrier_in\n");
  EXPECT_EQ(b.effects.fence, "") << "there are no new values";
}

TEST(PmiHostTest, IgnoresARejectedRankInBarriers) {
  Host host({2});
  host.come(0);
  host.come(1);
  host.say(0, "cmd=barrier_in\nno PMI\n");
  ASSERT_EQ(host.effects.closed.size(), 1u);
  host.say(1, "cmd=barrier_in\n");
  EXPECT_FALSE(host.effects.fence.has_value()) << "rank 0 was disconnected";
  host.effects = {};
  host.host.fenced({""}, host.effects);
  EXPECT_EQ(host.replies_to(0), "");
  EXPECT_EQ(host.replies_to(1), "cmd=barrier_out rc=0\n");
}

TEST(PmiHostTest, ReportsADamagedBlob) {
  for (const char* blob : {"no end", "\n", "word\n", "key value\nrest"}) {
    Host host({1, 1});
    host.host.fenced({"", blob}, host.effects);
    EXPECT_EQ(host.effects.events.size(), 1u) << blob;
  }
}

TEST(PmiHostTest, ReportsHowARankExited) {
  Host host({4});
  for (std::uint32_t rank = 0; rank < 4; ++rank) host.come(rank);
  for (std::uint32_t rank = 1; rank < 4; ++rank) host.say(rank, kInit);
  host.say(2, "cmd=finalize\n");
  host.say(3, "cmd=abort exitcode=7 message=the end\x01\n");
  EXPECT_EQ(host.effects.events, Texts{"abort 3 7 the end?"});
  host.effects = {};
  for (std::uint32_t rank = 0; rank < 4; ++rank) host.host.ended(rank, host.effects);
  EXPECT_EQ(host.effects.events, Texts{"vanished 1"});
}

TEST(PmiHostTest, AllowsASecondProcessOnlyIfTheFirstDidNotJoin) {
  Host host({1});
  host.come(0);
  host.host.ended(0, host.effects);
  host.host.opened(5);
  host.say(5, "rank 0\n");
  EXPECT_EQ(host.say(5, kInit), kInitDone);
  host.host.opened(6);
  host.say(6, "rank 0\n");
  EXPECT_EQ(host.effects.closed, std::vector<PmiHost::Connection>{6});
  EXPECT_NE(host.effects.notes.at(0).find("a second process"), std::string::npos);
  host.say(5, "cmd=finalize\n");
  EXPECT_NE(host.say(5, kInit), kInitDone) << "a process may initialize only once";
}

TEST(PmiHostTest, RejectsOtherProtocolsWithOneLine) {
  const std::pair<std::string, const char*> kTable[] = {
      {"    69cmd=fullinit;pmirank=0;", "PMI-2"},
      {"cmd=init pmi_version=2 pmi_subversion=0\n", "PMI-2"},
      {"GET / HTTP/1.1\n", "not PMI-1"},
      {std::string("cmd=get\0key=k\n", 14), "not PMI-1"},
      {"cmd= key=k\n", "without a command"},
      {"cmd=" + std::string(kMaxPmiLine, 'x'), "bytes"},
      {"mcmd=spawn\n" + std::string(kMaxPmiSpawn / 2, '\n') + std::string(kMaxPmiSpawn, '\n'),
       "bytes"},
  };
  for (const auto& [bytes, words] : kTable) {
    Host host({1});
    host.come(0);
    host.say(0, bytes);
    ASSERT_EQ(host.effects.events.size(), 1u) << bytes.substr(0, 40);
    EXPECT_TRUE(host.effects.events[0].starts_with("error rank 0: ")) << host.effects.events[0];
    EXPECT_NE(host.effects.events[0].find(words), std::string::npos) << host.effects.events[0];
    EXPECT_EQ(host.effects.closed.size(), 1u);
    EXPECT_EQ(host.say(0, kInit), "") << "the host must ignore further bytes";
  }
  for (const char* hello : {"rank 1\n", "rank -1\n", "rank x\n", "rank \n", "hello\n", "\n"}) {
    Host host({1, 1});
    host.host.opened(0);
    EXPECT_EQ(host.say(0, hello), "");
    EXPECT_EQ(host.effects.closed.size(), 1u) << hello;
    EXPECT_EQ(host.effects.notes.size(), 1u) << hello;
  }
}

TEST(PmiHostTest, LimitsTheValuesOfAHost) {
  Host host({1});
  host.come(0);
  const std::string value(kMaxPmiValue, 'v');
  int taken = 0;
  while (host.say(0, "cmd=put key=k" + std::to_string(taken) + " value=" + value + "\n")
             .find("rc=0") != std::string::npos)
    ++taken;
  EXPECT_GT(taken, 4000);
  EXPECT_LT(taken * kMaxPmiValue, kMaxPmiPairs);
}

// A library with PMI_PORT sends its rank itself.
TEST(PmiHostTest, BindsALibraryThatConnectsByItself) {
  Host host({2, 2}, 1);
  host.host.opened(7);
  EXPECT_EQ(host.say(7, "cmd=initack pmiid=3\n"),
            "cmd=initack\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n");
  EXPECT_EQ(host.say(7, kInit), kInitDone);
  EXPECT_EQ(host.effects.events, Texts{"joined 3"});
  for (const char* wrong : {"cmd=initack\n", "cmd=initack pmiid=0\n", "cmd=init pmiid=2\n"}) {
    host.host.opened(8);
    EXPECT_EQ(host.say(8, wrong), "");
    EXPECT_EQ(host.effects.closed.size(), 1u) << wrong;
  }
}

TEST(PmiHostTest, MapsRanksToHosts) {
  EXPECT_EQ(process_mapping({4}), "(vector,(0,1,4))");
  EXPECT_EQ(process_mapping({2, 2, 1}), "(vector,(0,2,2),(2,1,1))");
  // A mapping that exceeds a line is omitted; the library then computes it.
  std::vector<std::uint32_t> uneven;
  for (std::uint32_t host = 0; host < 200; ++host) uneven.push_back(1 + host % 2);
  Host host(uneven);
  host.come(0);
  EXPECT_NE(host.say(0, "cmd=get key=PMI_process_mapping\n").find("rc=-1"), std::string::npos);
}

}  // namespace
}  // namespace ivy::store
