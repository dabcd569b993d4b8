// SPDX-License-Identifier: Apache-2.0
// The agent's listening sockets against malicious and silent peers.
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <vector>

#include "agent/daemon/net/acceptor.h"
#include "tests/agent/agent_front_fixture.h"
#include "tests/agent/agent_hello.h"

namespace ivy::test {
namespace {

using namespace std::chrono_literals;

// Stands in for gRPC: keeps the last connection.
class Intake final : public Acceptor::Intake {
 public:
  ~Intake() override {
    if (descriptor >= 0) close(descriptor);
  }
  void HandleNewConnection(NewConnectionParameters* connection) override {
    const int last = descriptor.exchange(connection->fd);
    if (last >= 0) close(last);
  }
  std::atomic<int> descriptor = -1;
};

class AgentAcceptorTest : public AgentFront {
 protected:
  // Opens a TLS listener without gRPC behind it.
  void open_unix_listener(std::chrono::milliseconds deadline = 5s) {
    AcceptorLimits limits;
    limits.hello_deadline = deadline;
    auto unix_listener = Acceptor::listen_tls(loop_, "127.0.0.1", 0, half_open_, limits, intake_);
    ASSERT_TRUE(unix_listener.ok()) << unix_listener.error().message;
    unix_listener_ = std::move(*unix_listener);
    port_ = unix_listener_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    if (unix_listener_ != nullptr) on_loop([this] { unix_listener_.reset(); });
    for (const int descriptor : clients_) close(descriptor);
    AgentFront::TearDown();
  }
  int client() {
    clients_.push_back(connect_raw());
    return clients_.back();
  }
  void say(int descriptor, const std::string& bytes) {
    ASSERT_EQ(send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  std::unique_ptr<Acceptor> unix_listener_;
  Intake intake_;
  std::vector<int> clients_;
};

TEST_F(AgentAcceptorTest, RejectsOtherProtocolsImmediatelyAndNamesThem) {
  open_unix_listener();
  const std::vector<std::pair<std::string, std::string>> cases{
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "plaintext HTTP/2"},
      {"GET / HTTP/1.0\r\n\r\n", "HTTP request"},
      {"\x1b[2Jgarbage", "\\x1b[2Jgarbage"},
      {client_hello({0x0303}), "older than 1.3"}};
  for (const auto& [bytes, reason] : cases) {
    const int descriptor = client();
    say(descriptor, bytes);
    EXPECT_TRUE(soon_closed(descriptor)) << reason;
    EXPECT_TRUE(log_.eventually_contains(reason)) << reason;
  }
  EXPECT_EQ(half_open_.size(), 0u);
  EXPECT_EQ(intake_.descriptor, -1);
}

TEST_F(AgentAcceptorTest, RejectsSilenceAndUnfinishedHellosAtTheDeadline) {
  open_unix_listener(300ms);
  const auto begin = std::chrono::steady_clock::now();
  const int silent = client();
  const int slow = client();
  say(slow, client_hello().substr(0, 20));
  EXPECT_TRUE(soon_closed(silent));
  EXPECT_TRUE(soon_closed(slow));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
  EXPECT_TRUE(log_.eventually_contains("it was still silent"));
  EXPECT_TRUE(log_.eventually_contains("ends after 20 bytes"));
}

TEST_F(AgentAcceptorTest, LogsAPeerThatClosesBeforeSendingAnything) {
  open_unix_listener();
  const int nothing = client();
  shutdown(nothing, SHUT_WR);
  EXPECT_TRUE(soon_closed(nothing));
  const int little = client();
  say(little, "hi");
  shutdown(little, SHUT_WR);
  EXPECT_TRUE(soon_closed(little));
  const int half = client();
  say(half, client_hello().substr(0, 30));
  shutdown(half, SHUT_WR);
  EXPECT_TRUE(soon_closed(half));
  EXPECT_TRUE(log_.eventually_contains("it closed the connection and was silent"));
  EXPECT_TRUE(log_.eventually_contains("sent only \"hi\""));
  EXPECT_TRUE(log_.eventually_contains("ends after 30 bytes"));
}

TEST_F(AgentAcceptorTest, DeliversAHelloThatArrivesByteByByteUnchanged) {
  open_unix_listener();
  const std::string hello = client_hello({0x0304}, 100);
  const int descriptor = client();
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (const char byte : hello) say(descriptor, std::string(1, byte));
  ASSERT_TRUE(eventually([this] { return intake_.descriptor >= 0; })) << log_.text();
  std::string received(hello.size() + 1, '\0');
  EXPECT_EQ(recv(intake_.descriptor, received.data(), received.size(), 0),
            static_cast<ssize_t>(hello.size()));
  received.resize(hello.size());
  EXPECT_EQ(received, hello);
  unsigned value = 0;
  socklen_t length = sizeof value;
  getsockopt(intake_.descriptor, SOL_SOCKET, SO_RCVLOWAT, &value, &length);
  EXPECT_EQ(value, 1u);
}

TEST_F(AgentAcceptorTest, UsesNoCpuWhileItWaits) {
  open_unix_listener();
  const int descriptor = client();
  say(descriptor, client_hello().substr(0, 20));
  ASSERT_TRUE(eventually([this] { return half_open_.size() == 1; }));
  timespec begin{};
  timespec end{};
  clockid_t clock{};
  ASSERT_EQ(pthread_getcpuclockid(thread_.native_handle(), &clock), 0);
  clock_gettime(clock, &begin);
  // Not a wait for an event: it gives the loop time in which it could spin.
  std::this_thread::sleep_for(500ms);
  clock_gettime(clock, &end);
  const double used_ms = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 +
                         static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6;
  EXPECT_LT(used_ms, 50);
}

TEST_F(AgentAcceptorTest, KeepsTheNewestSilentConnectionsOfAnAddress) {
  open_unix_listener();
  for (int i = 0; i < 80; ++i) ASSERT_GE(client(), 0);
  EXPECT_TRUE(eventually([this] { return half_open_.size() == 64; }));
  EXPECT_TRUE(soon_closed(clients_.front()));
  EXPECT_TRUE(log_.eventually_contains("64 connections from this address"));
  say(clients_.back(), client_hello());
  EXPECT_TRUE(eventually([this] { return intake_.descriptor >= 0; }));
}

TEST_F(AgentAcceptorTest, RecoversWhenNoDescriptorIsLeft) {
  open_unix_listener();
  const int waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  clients_.push_back(waiting);
  rlimit saved{};
  getrlimit(RLIMIT_NOFILE, &saved);
  const rlimit small{128, saved.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  std::vector<int> taken;
  for (int more = dup(waiting); more >= 0; more = dup(waiting)) taken.push_back(more);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(waiting, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(soon_closed(waiting));
  for (const int descriptor : taken) close(descriptor);
  setrlimit(RLIMIT_NOFILE, &saved);
  EXPECT_TRUE(log_.eventually_contains("closed immediately: Too many open files"));
  say(client(), client_hello());
  EXPECT_TRUE(eventually([this] { return intake_.descriptor >= 0; }));
}

TEST_F(AgentAcceptorTest, AcceptsLaunchersDuringAFloodOfSilentConnections) {
  serve();
  for (int i = 0; i < 500; ++i) ASSERT_GE(client(), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(ask(tls_channel(authority_.user("alice"))).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(1s));
}

TEST_F(AgentAcceptorTest, LogsFailedHandshakes) {
  serve();
  const int descriptor = client();
  std::string hello = client_hello();
  const std::string p256 = number(0x0017, 2);
  // A key exchange group that gRPC does not support.
  hello.replace(hello.find(with_length(p256, 2)), 4, with_length(number(0x001d, 2), 2));
  say(descriptor, hello);
  EXPECT_TRUE(soon_closed(descriptor));
  EXPECT_TRUE(log_.eventually_contains("rejected 127.0.0.1:"));
  EXPECT_TRUE(log_.eventually_contains("its TLS handshake failed: no suitable key share"));
}

TEST_F(AgentAcceptorTest, ClosesStalledHandshakes) {
  serve();
  const int descriptor = client();
  const auto begin = std::chrono::steady_clock::now();
  // gRPC answers this hello and waits for the next message, which never arrives.
  say(descriptor, client_hello());
  std::string answer(4096, '\0');
  ASSERT_GT(recv(descriptor, answer.data(), answer.size(), 0), 0);
  EXPECT_EQ(answer[0], 0x16);
  EXPECT_EQ(half_open_.size(), 1u);
  ASSERT_EQ(recv(descriptor, answer.data(), answer.size(), 0), 0);
  const auto lasted = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(lasted, 4s);
  EXPECT_LT(lasted, 5s + scaled_time(1s));
}

// ---- Unix sockets
// -------------------------------------------------------------------------------------

class UnixListenerTest : public AgentFront {
 protected:
  Result<std::unique_ptr<Acceptor>> open_at(const std::string& path) {
    return Acceptor::listen_unix(loop_, path, {}, intake_);
  }
  Intake intake_;
};

TEST_F(UnixListenerTest, LetsOnlyItsOwnerOpenTheSocket) {
  const auto unix_listener = open_at(sockets_ / "new/agent.sock");
  ASSERT_TRUE(unix_listener.ok()) << unix_listener.error().message;
  struct stat status {};
  ASSERT_EQ(stat((sockets_ / "new/agent.sock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ASSERT_EQ(stat((sockets_ / "new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
}

TEST_F(UnixListenerTest, DoesNotReplaceTheSocketOfARunningAgent) {
  auto first = open_at(sockets_ / "agent.sock");
  ASSERT_TRUE(first.ok());
  const auto second = open_at(sockets_ / "agent.sock");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  first->reset();
  EXPECT_FALSE(std::filesystem::exists(sockets_ / "agent.sock"));
  EXPECT_TRUE(open_at(sockets_ / "agent.sock").ok());
}

TEST_F(UnixListenerTest, ReplacesAStaleSocketButNotALiveOne) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (sockets_ / "agent.sock").copy(address.sun_path, sizeof address.sun_path - 1);
  const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(other, 1), 0);
  const auto rejected = open_at(sockets_ / "agent.sock");
  ASSERT_FALSE(rejected.ok());
  EXPECT_NE(rejected.error().message.find("another program is listening on"), std::string::npos);
  close(other);
  EXPECT_TRUE(open_at(sockets_ / "agent.sock").ok());
}

// The file mode already keeps other users out; this checks the credentials that the kernel reports
// for a peer that got through.
TEST_F(UnixListenerTest, RejectsOtherUsersByTheirCredentials) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto unix_listener = open_at(sockets_ / "agent.sock");
  ASSERT_TRUE(unix_listener.ok());
  chmod(sockets_.path().c_str(), 0755);
  chmod((sockets_ / "agent.sock").c_str(), 0666);
  const pid_t other = fork();
  if (other == 0) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (sockets_ / "agent.sock").copy(address.sun_path, sizeof address.sun_path - 1);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 0;
    const bool connected =
        setuid(65534) == 0 &&
        connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    _exit(connected && recv(descriptor, &byte, 1, 0) == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_TRUE(eventually([&] {
    loop_.poll();
    return waitpid(other, &status, WNOHANG) == other;
  }));
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(log_.eventually_contains("of user id 65534 on "));
}

TEST_F(UnixListenerTest, RejectsDirectoriesThatOtherUsersCanEnter) {
  chmod(sockets_.path().c_str(), 0755);
  const auto open_to_all = open_at(sockets_ / "agent.sock");
  ASSERT_FALSE(open_to_all.ok());
  EXPECT_NE(open_to_all.error().fix.find("chmod 700"), std::string::npos);
  chmod(sockets_.path().c_str(), 0700);
  std::filesystem::create_directory_symlink(certificates_.path(), sockets_ / "link");
  EXPECT_FALSE(open_at(sockets_ / "link/agent.sock").ok());
  EXPECT_FALSE(open_at("agent.sock").ok());
  EXPECT_FALSE(open_at(sockets_ / std::string(120, 'x')).ok());
}

TEST_F(UnixListenerTest, ChecksTcpAddresses) {
  EXPECT_EQ(Acceptor::listen_plaintext(loop_, "0.0.0.0", 0, {}, intake_).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(Acceptor::listen_tls(loop_, "node1", 0, half_open_, {}, intake_).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(Acceptor::listen_tls(loop_, "192.0.2.1", 0, half_open_, {}, intake_).error().code,
            Code::kUnavailable);
  const auto first = Acceptor::listen_tls(loop_, "127.0.0.1", 0, half_open_, {}, intake_);
  ASSERT_TRUE(first.ok());
  const auto second =
      Acceptor::listen_tls(loop_, "127.0.0.1", (*first)->port(), half_open_, {}, intake_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
}

}  // namespace
}  // namespace ivy::test
