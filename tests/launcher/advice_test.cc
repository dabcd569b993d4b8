// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/advice.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

const MasterAddress kMaster{"a", "10.0.0.1", 29500, false};
constexpr std::int64_t kSecond = 1'000'000'000;

WorkerEnd failed(int rank, const std::string& host, const std::string& tail) {
  WorkerEnd end;
  end.rank = rank;
  end.host = host;
  end.status.code = 1;
  end.at_ns = 10 * kSecond;
  end.stderr_tail = tail;
  return end;
}

// Ended by the stop that the first failure brings about.
WorkerEnd stopped(int rank, const std::string& host, const std::string& tail = "") {
  WorkerEnd end = failed(rank, host, tail);
  end.status = ExitStatus{.code = 0, .signal = 15};
  end.after_stop = true;
  end.at_ns += kSecond;
  return end;
}

WorkerEnd at_second(WorkerEnd end, std::int64_t second) {
  end.at_ns = second * kSecond;
  return end;
}

// What frameworks say, word for word, with the host and port that they tried.
std::vector<std::string> output_errors(const std::string& host, const std::string& port) {
  return {
      // torch 1.13 and before, at its timeout.
      "E20261121 19:35:18.835834  1987 socket.cpp:860] [c10d] The client socket has timed out "
      "after "
      "4s while trying to connect to (" +
          host + ", " + port + ").",
      "Traceback (most recent call last):\n  File \"x.py\", line 4\nTimeoutError: The client "
      "socket "
      "has timed out after 1800s while trying to connect to (" +
          host + ", " + port + ").\n",
      // torch 2, at each try and at the end.
      "[W427 01:04:16.149509694 socket.cpp:752] [c10d] The client socket has failed to connect to "
      "[" +
          host + "]:" + port + " (errno: 111 - Connection refused).",
      "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while "
      "trying to connect to (" +
          host + ", " + port + ").",
      // Who does without a store.
      "RuntimeError: connect() to [" + host + "]:" + port + " timed out",
  };
}

// Where the script of rank 0 alone has set MASTER_PORT, it serves there and waits.
TEST(AdviceTest, ARankThatServedAStoreOfItsOwnPointsAtTheScript) {
  MasterAddress with_store = kMaster;
  with_store.has_store = true;
  const std::string note =
      "ivyrun: note: the script sets MASTER_PORT=12355 (ivyrun chose 29500); ...\n";
  for (const std::string& text :
       {std::string("Timed out after 5 seconds waiting for clients. 1/2 clients joined."),
        note + "RuntimeError: Socket Timeout"}) {
    const auto hint =
        overwritten_master_address({failed(0, "a", text), stopped(1, "b")}, with_store);
    ASSERT_TRUE(hint.has_value()) << text;
    EXPECT_EQ(hint->what,
              "rank 0 started its own store, and no other rank connected to it: the script seems "
              "to overwrite MASTER_PORT");
  }
  for (const std::string& text : {note + "ValueError: nan", std::string("Socket Timeout")})
    EXPECT_FALSE(overwritten_master_address({failed(0, "a", text)}, with_store)) << text;
}

// Rank 0 is a client of the job's store like everybody else.
TEST(AdviceTest, SuspectsTheScriptIfRankZeroDialsAnotherPort) {
  MasterAddress with_store = kMaster;
  with_store.has_store = true;
  for (const std::string& text : output_errors("localhost", "12355")) {
    const std::vector<WorkerEnd> ends = {failed(0, "a", text), stopped(1, "b")};
    const auto hint = overwritten_master_address(ends, with_store);
    if (text.starts_with("RuntimeError: connect()")) {
      EXPECT_FALSE(hint.has_value()) << text;  // No word of a rendezvous: any service of theirs.
      continue;
    }
    ASSERT_TRUE(hint.has_value()) << text;
    EXPECT_EQ(hint->what,
              "rank 0 looked for the store at a different address: the script seems to overwrite "
              "MASTER_PORT");
    EXPECT_FALSE(overwritten_master_address(ends, kMaster).has_value()) << text;
  }
  // The store's own port: the store itself is the trouble.
  const auto own = output_errors("localhost", "29500").front();
  EXPECT_FALSE(overwritten_master_address({failed(0, "a", own)}, with_store).has_value());
}

TEST(AdviceTest, SuspectsTheScriptIfAPeerDialsLocalhost) {
  for (const std::string host : {"localhost", "127.0.0.1", "::1"}) {
    for (const std::string& text : output_errors(host, "29500")) {
      const auto hint =
          overwritten_master_address({stopped(0, "a"), failed(2, "b", text)}, kMaster);
      ASSERT_TRUE(hint.has_value()) << text;
      EXPECT_EQ(hint->severity, Severity::kWarning);
      EXPECT_EQ(hint->id, "IVY-R010");
      EXPECT_NE(hint->what.find("rank 2 looked for rank 0 on its own host"), std::string::npos);
      EXPECT_NE(hint->where.find("MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"), std::string::npos);
      EXPECT_NE(hint->fix.find("setdefault"), std::string::npos);
    }
  }
}

TEST(AdviceTest, APortOfTheScriptsOwnIsNoDisguise) {
  // Most tutorials overwrite both; the last complaint does not say what it was about.
  for (const std::string& text : output_errors("localhost", "12355")) {
    const bool is_rendezvous = text.find("socket") != std::string::npos;
    EXPECT_EQ(overwritten_master_address({failed(2, "b", text)}, kMaster).has_value(),
              is_rendezvous)
        << text;
  }
}

TEST(AdviceTest, PeersThatWereStoppedMeanwhileCountToo) {
  // Rank 0 gives up first; the peer has only said what it tried.
  const std::string tried = output_errors("localhost", "29500")[2];
  EXPECT_TRUE(overwritten_master_address({failed(0, "a", ""), stopped(1, "b", tried)}, kMaster));
}

TEST(AdviceTest, ReportsAMissingServerWhileRank0Runs) {
  for (const std::string& text : output_errors("10.0.0.1", "29500")) {
    const auto hint = overwritten_master_address({stopped(0, "a"), failed(2, "b", text)}, kMaster);
    ASSERT_TRUE(hint.has_value()) << text;
    EXPECT_NE(hint->what.find("the script of rank 0"), std::string::npos) << hint->what;
    EXPECT_NE(hint->what.find("rank 2"), std::string::npos);
    EXPECT_NE(hint->cause.find("rank 2 had given up"), std::string::npos);
  }
  // By whatever name: the port is enough.
  EXPECT_TRUE(overwritten_master_address(
      {stopped(0, "a"), failed(2, "b", output_errors("a.cluster", "29500")[2])}, kMaster));
}

TEST(AdviceTest, Rank0ThatDiedFirstIsTheCauseItself) {
  const WorkerEnd peer = failed(2, "b", output_errors("10.0.0.1", "29500")[2]);
  EXPECT_FALSE(overwritten_master_address({at_second(failed(0, "a", "boom"), 9), peer}, kMaster));
  EXPECT_FALSE(overwritten_master_address({at_second(failed(0, "a", "boom"), 10), peer}, kMaster))
      << "within the clocks' error nobody knows";
  WorkerEnd good = at_second(failed(0, "a", ""), 9);
  good.status.code = 0;
  EXPECT_FALSE(overwritten_master_address({good, peer}, kMaster));
  EXPECT_FALSE(overwritten_master_address({peer}, kMaster)) << "its host was lost";
  EXPECT_TRUE(overwritten_master_address({at_second(failed(0, "a", "boom"), 11), peer}, kMaster));
}

TEST(AdviceTest, Rank0ThatGaveUpWaitingIsNoCause) {
  const WorkerEnd rank_0 = at_second(
      failed(0, "a", "DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients"),
      9);
  EXPECT_TRUE(overwritten_master_address(
      {rank_0, stopped(1, "b", output_errors("10.0.0.1", "29500")[2])}, kMaster));
}

TEST(AdviceTest, AccusesNoRankAfterARequestedStop) {
  // Ctrl-C while rank 0 is still importing: its peers have tried and were refused so far.
  EXPECT_FALSE(overwritten_master_address(
      {stopped(0, "a"), stopped(2, "b", output_errors("10.0.0.1", "29500")[2])}, kMaster));
}

TEST(AdviceTest, IgnoresOtherFailures) {
  for (const std::string text : {
           "ValueError: no data at localhost",
           // Services of the worker's own on its host.
           "HTTPConnectionPool(host='localhost', port=8080): Max retries: Connection refused",
           "redis.exceptions.ConnectionError: Error 111 connecting to 127.0.0.1:6379. Connection "
           "refused.",
           // Another place than rank 0's.
           "connect to 10.0.0.9:129500 timed out",
           "connect to 10.0.0.1:2950 timed out",
           // Connected once, lost later.
           "recvValue failed on SocketImpl(fd=3, addr=[10.0.0.2]:4567, remote=[10.0.0.1]:29500): "
           "Connection reset by peer",
           "sendBytes failed on SocketImpl(fd=3, remote=[10.0.0.1]:29500): Connection timed out",
           // On two lines that have nothing to do with each other.
           "listening on localhost:29500\nConnection refused\n",
       })
    EXPECT_FALSE(overwritten_master_address({stopped(0, "a"), failed(2, "b", text)}, kMaster))
        << text;
}

TEST(AdviceTest, Host0MayTalkToItself) {
  EXPECT_FALSE(overwritten_master_address({failed(0, "a", output_errors("localhost", "29500")[0]),
                                           failed(1, "a", output_errors("localhost", "29500")[0])},
                                          kMaster));
}

TEST(AdviceTest, AcceptsLocalhostIfAllHostsAreOneMachine) {
  const MasterAddress here{"fake0", "127.0.0.1", 29500};
  EXPECT_FALSE(overwritten_master_address(
      {stopped(0, "fake0"), failed(2, "fake1", output_errors("127.0.0.1", "29500")[0])}, here));
}

TEST(AdviceTest, IgnoresRanksThatSucceeded) {
  WorkerEnd end = failed(2, "b", output_errors("localhost", "29500")[2]);
  end.status.code = 0;
  EXPECT_FALSE(overwritten_master_address({end}, kMaster));
}

// What servers say whose port is the store's.
TEST(AdviceTest, ExplainsThatTheStoreUsesMasterPort) {
  MasterAddress with_store = kMaster;
  with_store.has_store = true;
  const std::string bound = "    server.bind((\"0.0.0.0\", 29500))\n";
  for (const std::string& text :
       {bound + "OSError: [Errno 98] Address already in use\n",
        std::string("listen tcp 0.0.0.0:29500: bind: address already in use"),
        std::string("Error: listen EADDRINUSE: address in use :::29500")}) {
    const auto hint = taken_master_port({stopped(1, "b"), failed(0, "a", text)}, with_store);
    ASSERT_TRUE(hint.has_value()) << text;
    EXPECT_EQ(hint->id, "IVY-R020");
    EXPECT_EQ(hint->what,
              "rank 0 could not open port 29500: it is MASTER_PORT, where the job's store listens");
    // On another host the port is free; without a store it is anybody's.
    EXPECT_FALSE(taken_master_port({failed(1, "b", text)}, with_store)) << text;
    EXPECT_FALSE(taken_master_port({failed(0, "a", text)}, kMaster)) << text;
  }
  for (const std::string& text :
       {std::string("OSError: [Errno 98] Address already in use: 295001"),
        std::string("connect to 10.0.0.1:29500: Connection refused"), bound})
    EXPECT_FALSE(taken_master_port({failed(0, "a", text)}, with_store)) << text;
  WorkerEnd well = failed(0, "a", bound + "Address already in use");
  well.status.code = 0;
  EXPECT_FALSE(taken_master_port({well}, with_store));
}

}  // namespace
}  // namespace ivy
