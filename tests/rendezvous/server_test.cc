// SPDX-License-Identifier: Apache-2.0
// The real server with slow, silent, hostile and many clients. None of them may disturb the others.
#include "rendezvous/server/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/fsuid.h>
#include <sys/resource.h>

#include "proto/os/peer_owner.h"
#include "tests/rendezvous/server_thread.h"
#include "tests/rendezvous/torch_script.h"
#include "tests/support/leak_guard.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::kToken;
using test::RawSocket;
using test::ServerThread;

const std::string kHello = test::opcode(0) + test::word32(0x3C85F7CE);
std::string ping(std::uint32_t nonce) { return test::opcode(13) + test::word32(nonce); }

class StoreServerTest : public testing::Test {
 protected:
  test::LeakGuard leaks_;
};

void expect_served(const ServerThread& server) {
  const auto client = server.client();
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->ping().ok());
  const RawSocket torch(server.torch_port);
  torch.send(kHello + ping(7));
  EXPECT_EQ(torch.receive(4), test::word32(7));
}

TEST_F(StoreServerTest, ServesBothDialects) {
  ServerThread server;
  expect_served(server);
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST_F(StoreServerTest, ClosesGarbageConnectionsWithoutDisturbingOthers) {
  ServerThread server;
  const auto client = server.client();
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\n\r\n",       std::string("\x16\x03\x01\x02\x00\x01", 6),
      std::string(100'000, '\xff'),   std::string(100'000, '\0'),
      "IVYS" + std::string(200, 'x'), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
  for (const std::string& bytes : garbage) {
    const RawSocket native(server.native_port);
    native.send(bytes);
    EXPECT_TRUE(native.is_hung_up()) << bytes.substr(0, 10);
    if (bytes[0] == 0) continue;  // Dialect A sees many times: "set the key '' to ''".
    const RawSocket torch(server.torch_port);
    torch.send(bytes);
    EXPECT_TRUE(torch.is_hung_up()) << bytes.substr(0, 10);
  }
  EXPECT_TRUE(client->ping().ok());
  expect_served(server);
}

TEST_F(StoreServerTest, ClosesConnectionsWithWrongProofs) {
  ServerThread server;
  const RawSocket stranger(server.native_port);
  EXPECT_FALSE(stranger.greet(std::string(32, 'x')));
  EXPECT_TRUE(stranger.is_hung_up());
  // Replays the messages of one client on another connection, which has another nonce.
  HandshakeHello hello;
  hello.purpose = "store";
  hello.job_id = test::kJobId;
  hello.nonce = random_bytes(kNonceBytes);
  const std::string bytes = encode_hello(hello);
  const RawSocket first(server.native_port);
  first.send(bytes);
  const std::string proof = make_proof(bytes, first.receive(kChallengeBytes), kToken);
  first.send(proof);
  EXPECT_EQ(first.receive(9).size(), 9u);
  const RawSocket again(server.native_port);
  again.send(bytes);
  EXPECT_EQ(again.receive(kChallengeBytes).size(), kChallengeBytes);
  again.send(proof);
  EXPECT_TRUE(again.is_hung_up());
  // A greeting for another service.
  hello.purpose = "comm";
  const RawSocket elsewhere(server.native_port);
  elsewhere.send(encode_hello(hello));
  EXPECT_TRUE(elsewhere.is_hung_up());
  EXPECT_TRUE(elsewhere.receive(1).empty());
}

TEST_F(StoreServerTest, ClosesSilentAndSlowConnectionsAtTheDeadline) {
  ServerLimits limits;
  limits.handshake_ns = 400'000'000;
  ServerThread server(limits);
  const RawSocket silent(server.native_port);
  const RawSocket slow(server.native_port);
  const auto begin = std::chrono::steady_clock::now();
  std::size_t at = 0;
  const std::string greeting("IVYS\2\0store", 11);
  EXPECT_TRUE(eventually([&] {
    slow.send_some(greeting.substr(at++ % greeting.size(), 1));
    expect_served(server);
    return slow.is_hung_up(0ms);
  }));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 300ms);
  EXPECT_TRUE(silent.is_hung_up());
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

// The previous version's greeting is shorter, so the server must not wait for more bytes.
TEST_F(StoreServerTest, DetectsAnotherVersionImmediately) {
  ServerThread server;
  const auto begin = std::chrono::steady_clock::now();
  const RawSocket older(server.native_port);
  older.send(std::string("IVYS\1\0store", 11) + std::string(71, '\0'));
  EXPECT_TRUE(older.is_hung_up());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::scaled_time(2s))
      << "without waiting for the timeout";
  EXPECT_NE(server.log().find(
                "the peer uses version 1 of the handshake, but this program uses version 2"),
            std::string::npos)
      << server.log();
}

TEST_F(StoreServerTest, ClosesTheOldestUnauthenticatedConnection) {
  ServerLimits limits;
  limits.unauthenticated = 10;
  ServerThread server(limits);
  const auto client = server.client();
  std::vector<std::unique_ptr<RawSocket>> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(std::make_unique<RawSocket>(server.native_port));
  EXPECT_TRUE(strangers.front()->is_hung_up());
  EXPECT_TRUE(eventually([&] { return server.connections() <= 11; }));
  EXPECT_TRUE(client->ping().ok());
  expect_served(server);
}

TEST_F(StoreServerTest, ServesOthersDuringASlowReader) {
  ServerThread server;
  const auto client = server.client();
  const std::string value(kMaxValueBytes, 'v');
  const RawSocket slow(server.torch_port);
  ASSERT_TRUE(slow.send(kHello + test::opcode(1) + test::text("/big") + test::text(value)));
  std::string gets;
  for (int i = 0; i < 200; ++i) gets += test::opcode(3) + test::text("/big");
  ASSERT_TRUE(slow.send(gets));
  // It requests 1.6 GB. Other clients are served as usual, and it gets as much as it reads.
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(client->ping().ok());
  expect_served(server);
  for (int i = 0; i < 5; ++i) {
    const std::string reply = slow.receive(8 + kMaxValueBytes, 20s);
    EXPECT_EQ(reply.size(), 8 + kMaxValueBytes);
    EXPECT_EQ(reply.substr(0, 8), test::number(kMaxValueBytes));
  }
}

TEST_F(StoreServerTest, EndsTheWatchOfAClientThatDoesNotRead) {
  ServerLimits limits;
  limits.unread_pause_bytes = 100'000;
  ServerThread server(limits);
  const auto client = server.client();
  const RawSocket watcher(server.native_port);
  ASSERT_TRUE(watcher.greet());
  std::string watch;
  std::string prefix;
  put_text(prefix, "w/");
  append_frame(watch, {static_cast<std::uint8_t>(Op::kWatch), 1}, prefix);
  ASSERT_TRUE(watcher.send(watch));
  EXPECT_EQ(watcher.receive(9).size(), 9u);
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(client->set("w/" + std::to_string(i), std::string(1 << 20, 'v')).ok());
  WireDecoder decoder(kMaxFrameBytes);
  int changes = 0;
  bool overflowed = false;
  while (!overflowed) {
    const std::string bytes = watcher.receive(65536, 2s);
    if (bytes.empty()) break;
    decoder.feed(bytes);
    while (auto frame = *decoder.next()) {
      ++changes;
      overflowed = frame->payload.at(0) == 3;
    }
  }
  EXPECT_TRUE(overflowed);
  EXPECT_LT(changes, 30);
  ASSERT_TRUE(client->set("w/later", "").ok());
  EXPECT_TRUE(watcher.receive(1, 100ms).empty()) << "the watch was closed";
  std::string again;
  std::string text;
  put_text(text, "still here");
  append_frame(again, {static_cast<std::uint8_t>(Op::kPing), 2}, text);
  watcher.send(again);
  EXPECT_EQ(watcher.receive(23).size(), 23u);
}

TEST_F(StoreServerTest, RecoversWhenDescriptorsRunOut) {
  ServerThread server;
  std::vector<std::unique_ptr<RawSocket>> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(std::make_unique<RawSocket>());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &low);
  std::vector<int> taken;
  while (true) {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    taken.push_back(fd);
  }
  for (const auto& socket : waiting) {
    socket->connect(server.torch_port);
    socket->send(kHello + ping(1));
  }
  EXPECT_TRUE(eventually(
      [&] { return server.log().find("cannot accept connections") != std::string::npos; }));
  for (const int fd : taken) ::close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  for (const auto& socket : waiting) EXPECT_EQ(socket->receive(4), test::word32(1));
}

TEST_F(StoreServerTest, SynchronizesFiveHundredClients) {
  ServerThread server;
  constexpr std::uint32_t kClients = 500;
  std::vector<std::unique_ptr<Client>> clients;
  for (std::uint32_t rank = 0; rank < kClients; ++rank) clients.push_back(server.client(rank));
  EXPECT_EQ(server.connections(), kClients);
  std::vector<std::thread> threads;
  std::atomic<int> met = 0;
  for (std::uint32_t rank = 0; rank < kClients; ++rank) {
    threads.emplace_back([&, rank] {
      const auto round = clients[rank]->barrier("all", kClients, rank, test::scaled_time(20s));
      if (round.ok() && *round == 1) ++met;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(met, static_cast<int>(kClients));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST_F(StoreServerTest, EndsAWaitExactlyAtItsDeadline) {
  ServerThread server;
  const auto client = server.client();
  std::vector<std::chrono::steady_clock::duration> took;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(client->wait({"never"}, 20ms).error().code, Code::kDeadlineExceeded);
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  EXPECT_GE(*std::min_element(took.begin(), took.end()), 20ms);
  EXPECT_LT(*std::min_element(took.begin(), took.end()), 120ms);
}

TEST_F(StoreServerTest, ClosesTheClientsOfAGeneration) {
  ServerThread server;
  const auto old = server.client();
  ASSERT_TRUE(old->set("k", "v").ok());
  const RawSocket torch(server.torch_port);
  torch.send(kHello + test::opcode(1) + test::text("/k") + test::text("v") + ping(1));
  EXPECT_EQ(torch.receive(4), test::word32(1));
  std::thread waiting([&] {
    const Result<void> waited = old->wait({"never"}, test::scaled_time(20s));
    ASSERT_FALSE(waited.ok());
    EXPECT_TRUE(waited.error().code == Code::kAborted ||
                waited.error().code == Code::kFailedPrecondition)
        << waited.error().message;
  });
  EXPECT_TRUE(eventually([&] {
    return server.on_loop([](Server& one) { return one.engine().open_requests() > 0; });
  }));
  server.on_loop([](Server& one) { one.begin_generation(1); });
  waiting.join();
  EXPECT_TRUE(torch.is_hung_up());
  EXPECT_EQ(old->get("k").error().code, Code::kFailedPrecondition);
  ClientOptions options = server.options();
  options.generation = 1;
  const auto fresh = Client::connect(options);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ((*fresh)->get("k").error().code, Code::kNotFound);
  const RawSocket torch_again(server.torch_port);
  torch_again.send(kHello + test::opcode(7));
  EXPECT_EQ(torch_again.receive(8), test::number(0));
}

// A connection that was made but not accepted before the generation starts belongs to the previous
// one.
TEST_F(StoreServerTest, AssignsEarlyConnectionsToThePreviousGeneration) {
  ServerThread server;
  std::unique_ptr<RawSocket> knocking;
  server.on_loop([&](Server& one) {
    // The loop is busy here and does not accept.
    knocking = std::make_unique<RawSocket>(server.torch_port);
    knocking->send(kHello + test::opcode(1) + test::text("/stale") + test::text("v"));
    one.begin_generation(1);
  });
  EXPECT_TRUE(knocking->is_hung_up());
  const RawSocket fresh(server.torch_port);
  fresh.send(kHello + test::opcode(7));
  EXPECT_EQ(fresh.receive(8), test::number(0));
}

TEST_F(StoreServerTest, CountsOnlyChangesAsProgress) {
  ServerThread server;
  const auto client = server.client();
  ASSERT_TRUE(client->set("k", "v").ok());
  const auto progress = [&] {
    return server.on_loop([](Server& one) { return one.last_progress_ns(); });
  };
  const std::uint64_t before = progress();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client->check({"k", "exception_dump"}).ok());
  EXPECT_EQ(progress(), before);
  ASSERT_TRUE(client->add("n", 1).ok());
  EXPECT_GT(progress(), before);
}

TEST_F(StoreServerTest, AcceptsTorchOnlyFromTheJobsHosts) {
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  std::string address;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const bool usable = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
                        (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
              text.size());
    address = text.data();
  }
  freeifaddrs(all);
  if (address.empty()) GTEST_SKIP() << "this machine has no address but loopback";
  for (const std::vector<std::string>& others :
       {std::vector<std::string>{}, std::vector<std::string>{"192.0.2.1"}}) {
    ServerThread server({}, others, 0, address);
    const RawSocket stranger(server.torch_port, address);
    EXPECT_TRUE(stranger.is_hung_up());
    EXPECT_NE(server.log().find("it is not a host of this job"), std::string::npos) << server.log();
  }
  ServerThread server({}, {"192.0.2.1", address}, 0, address);
  const RawSocket host(server.torch_port, address);
  host.send(kHello + ping(7));
  EXPECT_EQ(host.receive(4), test::word32(7));
}

TEST_F(StoreServerTest, RejectsTooManyConnections) {
  ServerLimits limits;
  limits.connections = 3;
  ServerThread server(limits);
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (int i = 0; i < 3; ++i) {
    sockets.push_back(std::make_unique<RawSocket>(server.torch_port));
    sockets.back()->send(kHello + ping(1));
    EXPECT_EQ(sockets.back()->receive(4), test::word32(1));
  }
  const RawSocket rejected(server.torch_port);
  EXPECT_TRUE(rejected.is_hung_up());
  sockets.resize(1);
  EXPECT_TRUE(eventually([&] { return server.connections() == 1; }));
  expect_served(server);
}

TEST_F(StoreServerTest, LimitsTorchConnectionsSeparately) {
  ServerLimits limits;
  limits.torch_connections = 2;
  ServerThread server(limits);
  auto first = std::make_unique<RawSocket>(server.torch_port);
  const RawSocket second(server.torch_port);
  EXPECT_TRUE(eventually([&] { return server.connections() == 2; }));
  const RawSocket rejected(server.torch_port);
  EXPECT_TRUE(rejected.is_hung_up());
  EXPECT_NE(server.log().find("torch's clients have 2 connections, their limit"), std::string::npos)
      << server.log();
  EXPECT_TRUE(server.client()->set("k", "v").ok()) << "an authenticated client must be accepted";
  first.reset();
  EXPECT_TRUE(eventually([&] { return server.connections() == 1; }));
  const RawSocket third(server.torch_port);
  third.send(kHello + ping(7));
  EXPECT_EQ(third.receive(4), test::word32(7));
}

// Unfinished requests, requests after a wait, and unread replies: the server closes the connections
// with the most pending bytes and serves the others.
TEST_F(StoreServerTest, LimitsTorchBytesSeparately) {
  constexpr std::size_t kPiece = 600u << 10;
  const std::string value(kPiece, 'v');
  const std::string unfinished = test::opcode(1) + test::text("/a") + test::number(8 << 20) + value;
  const std::string behind = test::opcode(6) + test::keys({"/none"}) + test::opcode(1) +
                             test::text("/b") + test::text(value);
  std::string unread;
  for (int i = 0; i < 40; ++i) unread += test::opcode(3) + test::text("/large");
  for (const std::string& bytes : {unfinished, behind, unread}) {
    ServerLimits limits;
    limits.torch_bytes = 2u << 20;
    ServerThread server(limits);
    const RawSocket modest(server.torch_port);
    modest.send(kHello + test::opcode(1) + test::text("/large") + test::text(value) + ping(7));
    ASSERT_EQ(modest.receive(4), test::word32(7));
    std::vector<std::unique_ptr<RawSocket>> greedy;
    for (int i = 0; i < 12; ++i) {
      greedy.push_back(std::make_unique<RawSocket>(server.torch_port));
      EXPECT_TRUE(greedy.back()->send(kHello + bytes));
    }
    EXPECT_TRUE(eventually([&] {
      return server.connections() <= 4 &&
             server.log().find("more than their limit") != std::string::npos;
    })) << server.connections()
        << server.log();
    modest.send(ping(8));
    EXPECT_EQ(modest.receive(4), test::word32(8));
  }
}

// Every rank may send or receive the longest value at the same time.
TEST(TorchBytesTest, SufficeForEveryRank) {
  for (const std::size_t ranks : {1, 8, 64, 1000})
    EXPECT_GT(server_limits(4 * ranks + 64).torch_bytes, ranks * (kMaxValueBytes + kMaxKeyBytes));
  EXPECT_LT(server_limits(4 * 8 + 64).torch_bytes, std::size_t{300} << 20);
  EXPECT_LE(server_limits(~std::size_t{0}).torch_bytes, std::size_t{8} << 30);
}

TEST_F(StoreServerTest, AcceptsTorchOnlyFromTheJobsUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can pass for another user";
  ServerThread server({}, {}, 0, "::");
  constexpr uid_t kNobody = 65534;
  setfsuid(kNobody);  // For this thread and the socket that it opens.
  RawSocket stranger;
  setfsuid(0);
  stranger.connect(server.torch_port);
  EXPECT_TRUE(stranger.is_hung_up());
  EXPECT_EQ(server.log(),
            "connection from 127.0.0.1 rejected: it belongs to user 65534, but the job belongs to "
            "user 0\n");
  const RawSocket own(server.torch_port);
  own.send(kHello + ping(7));
  EXPECT_EQ(own.receive(4), test::word32(7));
}

// The kernel forgets the owner of a closed socket. A store that served such a client would serve
// every user.
TEST_F(StoreServerTest, DoesNotServeAClientThatClosedBeforeAccept) {
  ServerThread server;
  server.on_loop([&](store::Server&) {
    RawSocket hasty(server.torch_port);
    hasty.send(kHello + test::opcode(1) + test::text("key") + test::text("value"));
    hasty.close();
  });
  EXPECT_TRUE(eventually([&] { return !server.log().empty(); }));
  EXPECT_EQ(
      server.log(),
      "connection from 127.0.0.1 rejected: it closed before its owner could be determined, so "
      "it is not served\n");
}

// ---- Owners of peers ----------------------------------------------------------------------------

TEST(PeerOwnersTest, FindsTheUserOfALocalSocket) {
  for (const char* listening : {"127.0.0.1", "::", "::1"}) {
    const Result<int> listener = listen_tcp(listening, 0);
    if (!listener.ok()) continue;  // No IPv6 here.
    const bool is_v6 = listening == std::string("::1");
    const int client = ::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(test::port_of(*listener));
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = v4.sin_port;
    v6.sin6_addr = in6addr_loopback;
    ASSERT_EQ(is_v6 ? ::connect(client, reinterpret_cast<sockaddr*>(&v6), sizeof v6)
                    : ::connect(client, reinterpret_cast<sockaddr*>(&v4), sizeof v4),
              0);
    pollfd ready{*listener, POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 10'000), 1);
    const int accepted = ::accept(*listener, nullptr, nullptr);
    ASSERT_GE(accepted, 0);
    PeerOwners owners;
    const PeerOwners::Owner owner = owners.owner_of(accepted);
    EXPECT_EQ(owner.location, PeerOwners::Location::kThisHost) << owners.why_unknown();
    EXPECT_EQ(owner.user, geteuid());
    EXPECT_EQ(owners.owner_of(client).location, PeerOwners::Location::kThisHost);
    // From now on the kernel reports root as the owner.
    ::close(client);
    EXPECT_TRUE(eventually(
        [&] { return owners.owner_of(accepted).location == PeerOwners::Location::kClosed; }));
    ::close(accepted);
    ::close(*listener);
  }
}

// Simulates a kernel without tcp_diag, which lists neither end.
TEST(PeerOwnersTest, ExplainsWhyAnUnlistedConnectionHasNoOwner) {
  const int udp = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(9);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(udp, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback), 0);
  PeerOwners owners;
  EXPECT_EQ(owners.owner_of(udp).location, PeerOwners::Location::kUnknown);
  EXPECT_EQ(owners.why_unknown(), "the kernel does not list this connection");
  ::close(udp);
}

}  // namespace
}  // namespace ivy::store
