// SPDX-License-Identifier: Apache-2.0
// The handshake of two ranks that are suspended during their first contact. The running side gives
// up, and the other one retries when it resumes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/transports/tcp/background_dial.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/os/not_inherited.h"
#include "tests/comm/world.h"
#include "tests/support/resource_limit.h"

namespace ivy::comm::test {
namespace {

constexpr milliseconds kGreeting{200};  // Instead of 10 s.
constexpr milliseconds kLonger{500};

std::unique_ptr<PeerConnections> listener_of(std::uint32_t rank,
                                             milliseconds greeting = kGreeting) {
  PeerCredentials credentials;
  credentials.job_id = std::string(32, '1');
  credentials.token = std::string(32, 't');
  credentials.rank = rank;
  return PeerConnections::listen("127.0.0.1", credentials, greeting).value();
}

PeerChannel channel_to(std::uint32_t rank) {
  PeerChannel channel;
  channel.communicator = "world";
  channel.peer_rank = rank;
  return channel;
}

// Sends one byte as soon as the socket is writable. Returns false if the connection has failed.
bool give(int socket) {
  pollfd ready = {socket, POLLOUT, 0};
  return poll(&ready, 1, 2000) > 0 && send(socket, "x", 1, MSG_NOSIGNAL) == 1;
}

bool take(int socket) {
  pollfd ready = {socket, POLLIN, 0};
  char byte = 0;
  return poll(&ready, 1, 2000) > 0 && recv(socket, &byte, 1, 0) == 1;
}

// The dialler is suspended in one of its waits, the first of which is for the connection, while the
// listener gives up on the handshake.
TEST(GreetingTest, RetriesAfterTheDiallerWasSuspended) {
  for (const int stall_at : {1, 2, 3, 4}) {
    SCOPED_TRACE(stall_at);
    const std::unique_ptr<PeerConnections> dialler = listener_of(0);
    const std::unique_ptr<PeerConnections> accepting = listener_of(1);
    int asked = 0;
    const Result<PeerSocket> dialled =
        dialler->dial(accepting->address(), channel_to(1), 1, kUntilCancelled, [&] {
          if (++asked == stall_at) std::this_thread::sleep_for(kLonger);
          return true;
        });
    ASSERT_TRUE(dialled.ok()) << dialled.error().message;
    const PeerSocket accepted = accepting->take(channel_to(0), scaled_time(seconds(2)));
    ASSERT_GE(accepted.socket, 0) << "asked " << asked << " times";
    EXPECT_TRUE(give(dialled->socket) && take(accepted.socket));
    EXPECT_TRUE(give(accepted.socket) && take(dialled->socket));
    not_inherited::close(dialled->socket);
    not_inherited::close(accepted.socket);
  }
}

// Returns the loopback address with the port of a listener's address.
sockaddr_in loopback_of(const std::string& address) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  return where;
}

// More silent connections than the listener accepts at the same time.
TEST(GreetingTest, SilentConnectionsDoNotBlockPeers) {
  const std::unique_ptr<PeerConnections> accepting = listener_of(1, seconds(60));
  const std::unique_ptr<PeerConnections> dialler = listener_of(0, seconds(60));
  const std::string& address = accepting->address();
  const sockaddr_in where = loopback_of(address);
  std::vector<int> silent;
  for (std::size_t i = 0; i < 2 * kGreetingsMax; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  }
  const Result<PeerSocket> dialled =
      dialler->dial(address, channel_to(1), 1, scaled_time(seconds(10)), [] { return true; });
  EXPECT_TRUE(dialled.ok()) << dialled.error().message;
  const PeerSocket accepted = accepting->take(channel_to(0), scaled_time(seconds(2)));
  EXPECT_GE(accepted.socket, 0);
  if (dialled.ok() && accepted.socket >= 0) {
    EXPECT_TRUE(give(dialled->socket) && take(accepted.socket));
  }
  for (const int socket : silent) close(socket);
  if (dialled.ok()) not_inherited::close(dialled->socket);
  if (accepted.socket >= 0) not_inherited::close(accepted.socket);
}

TEST(GreetingTest, WaitsForAFreeDescriptorWithoutSpinning) {
  const std::unique_ptr<PeerConnections> accepting = listener_of(1, seconds(60));
  const std::unique_ptr<PeerConnections> dialler = listener_of(0, seconds(60));
  const std::string& address = accepting->address();
  const sockaddr_in where = loopback_of(address);
  const Descriptor silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  {
    const ivy::test::NoDescriptors none;
    ASSERT_EQ(connect(silent.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    EXPECT_LT(ivy::test::processor_time_of(milliseconds(300)), milliseconds(100));
  }
  const Result<PeerSocket> dialled =
      dialler->dial(address, channel_to(1), 1, scaled_time(seconds(10)), [] { return true; });
  ASSERT_TRUE(dialled.ok()) << dialled.error().message;
  const PeerSocket accepted = accepting->take(channel_to(0), scaled_time(seconds(5)));
  EXPECT_GE(accepted.socket, 0);
  not_inherited::close(dialled->socket);
  if (accepted.socket >= 0) not_inherited::close(accepted.socket);
}

// Returns an address such as "fe80::1%eth0" of an interface that is up, or an empty string.
std::string link_local_address() {
  ifaddrs* entries = nullptr;
  if (getifaddrs(&entries) != 0) return "";
  std::string found;
  for (const ifaddrs* entry = entries; entry != nullptr && found.empty(); entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET6) continue;
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    char text[INET6_ADDRSTRLEN] = {};
    if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    found = std::string(text) + "%" + entry->ifa_name;
  }
  freeifaddrs(entries);
  return found;
}

// The interface has another name on another host, so the address for peers does not contain it.
TEST(GreetingTest, DialsALinkLocalAddressThroughTheDiallersInterface) {
  const std::string host = link_local_address();
  if (host.empty()) GTEST_SKIP() << "no interface has a link-local address";
  PeerCredentials credentials;
  credentials.job_id = std::string(32, '1');
  credentials.token = std::string(32, 't');
  const auto dialler = PeerConnections::listen(host, credentials).value();
  credentials.rank = 1;
  const auto accepting = PeerConnections::listen(host, credentials).value();
  EXPECT_EQ(accepting->address().find('%'), std::string::npos) << accepting->address();
  EXPECT_TRUE(dialler->is_peer_listening(accepting->address()));
  const Result<PeerSocket> dialled = dialler->dial(accepting->address(), channel_to(1), 1,
                                                   scaled_time(seconds(10)), [] { return true; });
  ASSERT_TRUE(dialled.ok()) << dialled.error().message;
  const PeerSocket accepted = accepting->take(channel_to(0), scaled_time(seconds(5)));
  ASSERT_GE(accepted.socket, 0);
  EXPECT_TRUE(give(dialled->socket) && take(accepted.socket));
  not_inherited::close(dialled->socket);
  not_inherited::close(accepted.socket);
}

// A connection from elsewhere that claims to be a rank's, with the job's token.
TEST(GreetingTest, AcceptsARankOnlyFromItsOwnHost) {
  PeerCredentials credentials;
  credentials.job_id = std::string(32, '1');
  credentials.token = std::string(32, 't');
  credentials.rank = 1;
  credentials.waits_for_addresses = true;
  const auto accepting = PeerConnections::listen("127.0.0.1", credentials).value();
  const std::unique_ptr<PeerConnections> dialler = listener_of(0, seconds(10));
  // No rank is accepted before the listener knows the addresses of all ranks.
  const Result<PeerSocket> early =
      dialler->dial(accepting->address(), channel_to(1), 1, milliseconds(300), [] { return true; });
  EXPECT_FALSE(early.ok());
  for (const bool is_available : {false, true}) {
    SCOPED_TRACE(is_available);
    accepting->accept_only_from({{is_available ? "127.0.0.1" : "127.0.0.2"}, {"127.0.0.1"}});
    const Result<PeerSocket> dialled = dialler->dial(accepting->address(), channel_to(1), 1,
                                                     scaled_time(seconds(10)), [] { return true; });
    ASSERT_TRUE(dialled.ok()) << dialled.error().message;
    const PeerSocket accepted =
        accepting->take(channel_to(0), is_available ? scaled_time(seconds(5)) : milliseconds(300));
    EXPECT_EQ(accepted.socket >= 0, is_available);
    not_inherited::close(dialled->socket);
    if (accepted.socket >= 0) not_inherited::close(accepted.socket);
  }
}

// A rank's process, which a test can stop.
struct Rank {
  pid_t pid = -1;

  void stop() const { EXPECT_EQ(kill(pid, SIGSTOP), 0); }
  void go_on() const { EXPECT_EQ(kill(pid, SIGCONT), 0); }
  int wait() const {
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }
};

Rank start_rank(const std::function<bool()>& body) {
  Rank rank;
  rank.pid = fork();
  if (rank.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body() ? 0 : 1);
  }
  return rank;
}

struct HandshakeCase {
  std::atomic<bool> has_address{false};
  char address[64] = {};
  std::atomic<bool> may_dial{false};
  std::atomic<bool> dials{false};
};

bool accept_peer(HandshakeCase& handshake_case) {
  const std::unique_ptr<PeerConnections> listener = listener_of(1);
  listener->address().copy(handshake_case.address, sizeof handshake_case.address - 1);
  handshake_case.has_address = true;
  const PeerSocket accepted = listener->take(channel_to(0), scaled_time(seconds(5)));
  return accepted.socket >= 0 && take(accepted.socket) && give(accepted.socket);
}

bool dial_peer(HandshakeCase& handshake_case) {
  const std::unique_ptr<PeerConnections> listener = listener_of(0);
  const std::atomic<bool> is_cancelled{false};
  if (!ivy::test::eventually([&] { return handshake_case.may_dial.load(); }, seconds(5)))
    return false;
  BackgroundDial dial(*listener, handshake_case.address, channel_to(1), is_cancelled);
  handshake_case.dials = true;
  std::optional<Result<PeerSocket>> made;
  ivy::test::eventually([&] { return (made = dial.take()).has_value(); }, seconds(5));
  return made && made->ok() && give((*made)->socket) && take((*made)->socket);
}

// Stopped at the first contact and continued later: the accepting rank, or both, in both orders.
TEST(GreetingTest, ConnectsRanksThatWereStoppedDuringTheirHandshake) {
  enum class Stopped : std::uint8_t { kAccepting, kBothAcceptingFirst, kBothDiallingFirst };
  for (const Stopped stopped :
       {Stopped::kAccepting, Stopped::kBothAcceptingFirst, Stopped::kBothDiallingFirst}) {
    SCOPED_TRACE(static_cast<int>(stopped));
    Shared<HandshakeCase> handshake_case;
    const Rank accepting = start_rank([&] { return accept_peer(*handshake_case); });
    const Rank dialling = start_rank([&] { return dial_peer(*handshake_case); });
    EXPECT_TRUE(
        ivy::test::eventually([&] { return handshake_case->has_address.load(); }, seconds(5)));
    accepting.stop();
    handshake_case->may_dial = true;
    EXPECT_TRUE(ivy::test::eventually([&] { return handshake_case->dials.load(); }, seconds(5)));
    std::this_thread::sleep_for(milliseconds(50));  // Its hello is on the way by then.
    if (stopped == Stopped::kAccepting) {
      std::this_thread::sleep_for(kLonger);
      accepting.go_on();
    } else {
      dialling.stop();
      const Rank& first = stopped == Stopped::kBothAcceptingFirst ? accepting : dialling;
      const Rank& second = stopped == Stopped::kBothAcceptingFirst ? dialling : accepting;
      first.go_on();
      std::this_thread::sleep_for(kLonger);
      second.go_on();
    }
    EXPECT_EQ(dialling.wait(), 0);
    EXPECT_EQ(accepting.wait(), 0);
  }
}

}  // namespace
}  // namespace ivy::comm::test
