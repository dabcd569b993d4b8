// SPDX-License-Identifier: Apache-2.0
// The blocking client against the real server, through a proxy that disconnects, and against
// misbehaving servers.
#include "rendezvous/client/client.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <thread>

#include "proto/os/listening_socket.h"
#include "tests/rendezvous/server_thread.h"
#include "tests/rendezvous/store_proxy.h"
#include "tests/support/leak_guard.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::RawSocket;
using test::scaled_time;
using test::ServerThread;
using test::StoreProxy;

class StoreClientTest : public testing::Test {
 protected:
  test::LeakGuard leaks_;
};

TEST_F(StoreClientTest, ServesEveryRequest) {
  ServerThread server;
  const auto client = server.client();
  const std::string binary("\0\xff", 2);
  EXPECT_TRUE(client->set("a", binary).ok());
  EXPECT_EQ(*client->get("a"), binary);
  EXPECT_EQ(client->get("none").error().code, Code::kNotFound);
  EXPECT_TRUE(client->set_once("a", binary).ok());
  EXPECT_EQ(client->set_once("a", "x").error().code, Code::kAlreadyExists);
  EXPECT_EQ(*client->wait_get("a", 1s), binary);
  EXPECT_TRUE(client->wait({"a"}, 1s).ok());
  EXPECT_TRUE(*client->check({"a"}));
  EXPECT_FALSE(*client->check({"a", "none"}));
  EXPECT_EQ(*client->add("n", -3), -3);
  EXPECT_EQ(client->add("a", 1).error().code, Code::kInvalidArgument);
  EXPECT_EQ(*client->compare_set("c", std::nullopt, "1"),
            std::make_pair(true, std::optional<std::string>("1")));
  EXPECT_EQ(*client->compare_set("c", "0", "2"),
            std::make_pair(false, std::optional<std::string>("1")));
  EXPECT_EQ(*client->compare_set("d", "0", "2"),
            std::make_pair(false, std::optional<std::string>()));
  EXPECT_EQ(*client->append("c", "23"), 3u);
  EXPECT_TRUE(*client->remove("c"));
  EXPECT_FALSE(*client->remove("c"));
  EXPECT_TRUE(client->multi_set({{"x/1", "1"}, {"x/2", "2"}}).ok());
  EXPECT_EQ(*client->multi_get({"x/2", "x/1"}), (std::vector<std::string>{"2", "1"}));
  EXPECT_EQ(*client->push("q", "item"), 1u);
  EXPECT_EQ(*client->queue_length("q"), 1u);
  EXPECT_EQ(*client->pop("q", 1s), "item");
  EXPECT_EQ(client->pop("q", 10ms).error().code, Code::kDeadlineExceeded);
  EXPECT_EQ(*client->list("x/"), (std::vector<std::string>{"x/1", "x/2"}));
  EXPECT_EQ(*client->count("x/"), 2u);
  EXPECT_EQ(*client->barrier("b", 1, 0, 1s), 1u);
  EXPECT_EQ(*client->barrier("b", 1, 0, 1s), 2u);
  EXPECT_EQ(*client->why(), "store: no blocked requests");
  EXPECT_TRUE(client->ping().ok());
  const std::string big(kMaxValueBytes, 'v');
  EXPECT_TRUE(client->set("big", big).ok());
  EXPECT_TRUE(*client->get("big") == big);
  EXPECT_EQ(client->set("big", big + "1").error().code, Code::kInvalidArgument);
  EXPECT_EQ(client->set("big", std::string(kMaxFrameBytes, 'v')).error().code,
            Code::kInvalidArgument);
  EXPECT_TRUE(client->ping().ok()) << "the connection still works";
}

TEST_F(StoreClientTest, SharesOneConnectionAmongManyThreads) {
  ServerThread server;
  const auto client = server.client();
  constexpr int kThreads = 16;
  constexpr int kRounds = 200;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const std::string mine = "t" + std::to_string(i);
      const std::string next = "t" + std::to_string((i + 1) % kThreads);
      for (int round = 0; round < kRounds; ++round) {
        const std::string number = std::to_string(round);
        if (!client->set(mine + "/" + number, std::string(static_cast<std::size_t>(round), 'x'))
                 .ok())
          ++wrong;
        const auto value = client->wait_get(next + "/" + number, scaled_time(20s));
        if (!value.ok() || value->size() != static_cast<std::size_t>(round)) ++wrong;
        if (!client->add("sum", 1).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(*client->add("sum", 0), kThreads * kRounds);
  EXPECT_EQ(server.connections(), 1u);
}

TEST_F(StoreClientTest, SendsLargeValuesInBothDirectionsAtOnce) {
  ServerThread server;
  const auto client = server.client();
  const std::string big(kMaxValueBytes, 'v');
  ASSERT_TRUE(client->set("big", big).ok());
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const bool good =
            i % 2 == 0 ? client->set("big" + std::to_string(i), big).ok() : client->get("big").ok();
        if (!good) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(StoreClientTest, NamesTheKeyAfterATimeout) {
  ServerThread server;
  const auto client = server.client();
  const auto begin = std::chrono::steady_clock::now();
  const Result<std::string> value = client->wait_get("the/key", 50ms);
  EXPECT_EQ(value.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(value.error().message.find("for key the/key"), std::string::npos)
      << value.error().message;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST_F(StoreClientTest, CancelEndsEveryCall) {
  ServerThread server;
  const auto client = server.client();
  std::vector<std::thread> threads;
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const Result<void> waited = client->wait({"never"}, std::chrono::milliseconds::max());
      if (!waited.ok() && waited.error().code == Code::kCancelled) ++cancelled;
    });
  }
  EXPECT_TRUE(eventually([&] {
    return server.on_loop([](Server& one) { return one.engine().open_requests() > 0; });
  }));
  client->cancel();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cancelled, 8);
  EXPECT_EQ(client->ping().error().code, Code::kCancelled);
  EXPECT_TRUE(eventually([&] {
    return !server.on_loop([](Server& one) { return one.engine().open_requests() > 0; });
  }));
}

TEST_F(StoreClientTest, RejectsClientsOfOtherJobs) {
  ServerThread server;
  ClientOptions options = server.options();
  options.token = std::string(32, 'x');
  EXPECT_EQ(Client::connect(options).error().code, Code::kUnauthenticated);
  options = server.options();
  options.job_id = std::string(32, '0');
  EXPECT_EQ(Client::connect(options).error().code, Code::kUnauthenticated);
  options = server.options();
  options.generation = 3;
  const auto wrong = Client::connect(options);
  EXPECT_EQ(wrong.error().code, Code::kFailedPrecondition);
  EXPECT_NE(wrong.error().message.find("generation 3 is not served"), std::string::npos);
}

TEST_F(StoreClientTest, ChecksItsOptions) {
  for (const char* address : {"", "localhost:1", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:65536", "::1:5",
                              "[::1:5", "[::1]", "unix:", "1.2.3.4:x"}) {
    ClientOptions options;
    options.address = address;
    options.job_id = test::kJobId;
    EXPECT_EQ(Client::connect(options).error().code, Code::kInvalidArgument) << address;
  }
  ClientOptions options;
  options.address = "127.0.0.1:1";
  for (const char* job : {"", "xyz", "00112233445566778899AABBCCDDEEFF"}) {
    options.job_id = job;
    EXPECT_EQ(Client::connect(options).error().code, Code::kInvalidArgument) << job;
  }
}

// ---- Lost connections --------------------------------------------------------------------------

TEST_F(StoreClientTest, RepeatsIdempotentRequests) {
  ServerThread server;
  StoreProxy proxy(server.native_port);
  ClientOptions options = server.options();
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  const auto client = Client::connect(options).value();
  const auto other = server.client(1);
  ASSERT_TRUE(client->set("k", "v").ok());
  proxy.cut();
  EXPECT_EQ(*client->get("k"), "v");
  std::thread waiting([&] {
    const auto value = client->wait_get("late", scaled_time(20s));
    EXPECT_TRUE(value.ok()) << value.error().message;
  });
  EXPECT_TRUE(eventually([&] {
    return server.on_loop([](Server& one) { return one.engine().open_requests() > 0; });
  }));
  proxy.cut();
  EXPECT_TRUE(eventually([&] { return proxy.connections() > 0; }));
  ASSERT_TRUE(other->set("late", "v").ok());
  waiting.join();
}

TEST_F(StoreClientTest, NeverRepeatsOtherRequests) {
  ServerThread server;
  StoreProxy proxy(server.native_port);
  ClientOptions options = server.options();
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  const auto client = Client::connect(options).value();
  const auto other = server.client(1);
  proxy.hold_replies(true);
  std::thread adding([&] {
    const auto sum = client->add("n", 1);
    ASSERT_FALSE(sum.ok());
    EXPECT_EQ(sum.error().code, Code::kUnavailable);
    EXPECT_NE(sum.error().message.find("it is unknown whether"), std::string::npos);
  });
  EXPECT_TRUE(eventually([&] { return *other->check({"n"}); }));
  proxy.cut();
  adding.join();
  proxy.hold_replies(false);
  EXPECT_EQ(*client->add("n", 1), 2) << "the first add was executed and not sent again";
  // A connection that breaks while it is idle must not fail the next call.
  proxy.cut();
  EXPECT_EQ(*client->add("n", 1), 3);
}

TEST_F(StoreClientTest, CountsABarrierMemberOnceAcrossConnections) {
  ServerThread server;
  StoreProxy proxy(server.native_port);
  ClientOptions options = server.options();
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  const auto client = Client::connect(options).value();
  const auto other = server.client(1);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    proxy.hold_replies(true);
    std::thread arriving([&] {
      const auto mine = client->barrier("b", 2, 0, scaled_time(20s));
      ASSERT_TRUE(mine.ok()) << mine.error().message;
      EXPECT_EQ(*mine, round);
    });
    const auto theirs = other->barrier("b", 2, 1, scaled_time(20s));
    EXPECT_EQ(*theirs, round);
    proxy.cut();  // The answer was on its way.
    proxy.hold_replies(false);
    arriving.join();
  }
}

// A wait that times out before its answer arrives, and the next wait of the same arrival.
TEST_F(StoreClientTest, CountsRepeatedWaitsAtABarrierAsOneArrival) {
  ServerThread server;
  StoreProxy proxy(server.native_port);
  ClientOptions options = server.options();
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  const auto client = Client::connect(options).value();
  const auto other = server.client(1);
  const std::uint64_t arrival = client->new_arrival();
  proxy.hold_replies(true);
  std::thread arriving([&] {
    const auto mine = client->barrier("b", 2, 0, 1s, arrival);
    ASSERT_FALSE(mine.ok());
    EXPECT_EQ(mine.error().code, Code::kDeadlineExceeded);
  });
  const auto theirs = other->barrier("b", 2, 1, scaled_time(20s));
  arriving.join();
  proxy.hold_replies(false);
  ASSERT_TRUE(theirs.ok()) << theirs.error().message;
  const auto again = client->barrier("b", 2, 0, 5s, arrival);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, *theirs);
}

TEST_F(StoreClientTest, DetectsANewStoreAtTheOldAddress) {
  auto server = std::make_unique<ServerThread>();
  const std::uint16_t port = server->native_port;
  const auto client = server->client();
  ASSERT_TRUE(client->set("k", "v").ok());
  std::thread waiting([&] {
    const auto value = client->wait_get("never", scaled_time(20s));
    ASSERT_FALSE(value.ok());
    EXPECT_EQ(value.error().code, Code::kAborted);
    EXPECT_TRUE(value.error().message.starts_with("EpochLost")) << value.error().message;
  });
  EXPECT_TRUE(eventually([&] {
    return server->on_loop([](Server& one) { return one.engine().open_requests() > 0; });
  }));
  server.reset();
  server = std::make_unique<ServerThread>(ServerLimits{}, std::vector<std::string>{}, port);
  waiting.join();
  EXPECT_EQ(client->get("k").error().code, Code::kAborted);
  EXPECT_EQ(client->set("k", "x").error().code, Code::kAborted);
}

TEST_F(StoreClientTest, GivesUpOnAStoreThatIsNotRestarted) {
  ServerThread server;
  ClientOptions options = server.options();
  options.may_redial = false;
  const auto client = Client::connect(options).value();
  EXPECT_TRUE(client->set("a", "b").ok());
  server.stop();
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(client->get("a").error().code, Code::kUnavailable);
    EXPECT_EQ(client->compare_set("a", "b", "c").error().code, Code::kUnavailable);
    EXPECT_LT(std::chrono::steady_clock::now() - start, scaled_time(1s));
  }
}

// The server keeps serving connected clients and accepts no others.
TEST_F(StoreClientTest, AServerThatStopsListeningKeepsItsClients) {
  ServerThread server;
  const auto client = server.client();
  server.on_loop([](Server& it) { it.stop_listening(); });
  EXPECT_TRUE(client->set("a", "b").ok());
  ClientOptions options = server.options();
  options.connect_timeout = 100ms;
  EXPECT_EQ(Client::connect(options).error().code, Code::kUnavailable);
  EXPECT_EQ(*client->get("a"), "b");
}

TEST_F(StoreClientTest, ReportsAStoppedStoreAsUnavailable) {
  auto server = std::make_unique<ServerThread>();
  ClientOptions options = server->options();
  options.request_timeout = 300ms;
  const auto client = Client::connect(options).value();
  server.reset();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client->get("k").error().code, Code::kUnavailable);
  EXPECT_EQ(client->wait({"k"}, 200ms).error().code, Code::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(3s));
  options.connect_timeout = 100ms;
  const auto refused = Client::connect(options);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_NE(refused.error().message.find(options.address), std::string::npos);
}

// ---- Repeated requests are executed once -------------------------------------------------------

// A client whose write is executed but whose answer is lost. Another client writes before the first
// one reconnects and repeats its write.
class StoreClientRepeatTest : public StoreClientTest {
 protected:
  void SetUp() override {
    client_ = connect(server_.options());
    other_ = server_.client(1);
  }
  std::unique_ptr<Client> connect(ClientOptions options) const {
    options.address = "127.0.0.1:" + std::to_string(proxy_.port());
    return Client::connect(options).value();
  }
  // Runs `write` in a thread until `is_served` returns true, then runs `meanwhile` before the write
  // is repeated.
  void lose_the_answer(const std::function<void()>& write, const std::function<bool()>& is_served,
                       const std::function<void()>& meanwhile) {
    proxy_.hold_replies(true);
    std::thread writing(write);
    EXPECT_TRUE(eventually(is_served));
    meanwhile();
    proxy_.cut();
    proxy_.hold_replies(false);
    writing.join();
  }
  bool has(const std::string& key, const std::string& value) {
    const Result<std::string> there = other_->get(key);
    return there.ok() && *there == value;
  }

  ServerThread server_;
  StoreProxy proxy_{server_.native_port};
  std::unique_ptr<Client> client_;
  std::unique_ptr<Client> other_;
};

TEST_F(StoreClientRepeatTest, ASetDoesNotOverwriteANewerValue) {
  lose_the_answer([&] { EXPECT_TRUE(client_->set("k", "1").ok()); }, [&] { return has("k", "1"); },
                  [&] { ASSERT_TRUE(other_->set("k", "2").ok()); });
  EXPECT_EQ(*other_->get("k"), "2");
  EXPECT_TRUE(client_->set("k", "3").ok()) << "the next set is a new request";
  EXPECT_EQ(*other_->get("k"), "3");
}

TEST_F(StoreClientRepeatTest, AMultiSetDoesNotOverwriteANewerValue) {
  lose_the_answer(
      [&] {
        EXPECT_TRUE(client_->multi_set({{"a", "1"}, {"b", "1"}}).ok());
      },
      [&] { return has("b", "1"); }, [&] { ASSERT_TRUE(other_->set("a", "2").ok()); });
  EXPECT_EQ(*other_->multi_get({"a", "b"}), (std::vector<std::string>{"2", "1"}));
}

TEST_F(StoreClientRepeatTest, DoesNotRemoveARecreatedKey) {
  ASSERT_TRUE(other_->set("k", "1").ok());
  lose_the_answer(
      [&] {
        const Result<bool> removed = client_->remove("k");
        ASSERT_TRUE(removed.ok());
        EXPECT_TRUE(*removed) << "the key existed";
      },
      [&] { return !*other_->check({"k"}); }, [&] { ASSERT_TRUE(other_->set("k", "2").ok()); });
  EXPECT_TRUE(has("k", "2"));
}

TEST_F(StoreClientRepeatTest, ASetOnceDoesNotRestoreARemovedKey) {
  lose_the_answer([&] { EXPECT_TRUE(client_->set_once("k", "1").ok()); },
                  [&] { return has("k", "1"); }, [&] { ASSERT_TRUE(*other_->remove("k")); });
  EXPECT_FALSE(*other_->check({"k"}));
}

TEST_F(StoreClientRepeatTest, RecognizesEveryRepeatedRequest) {
  constexpr int kWriters = 24;
  const auto key = [](int i) { return "k" + std::to_string(i); };
  lose_the_answer(
      [&] {
        std::vector<std::thread> writers;
        for (int i = 0; i < kWriters; ++i)
          writers.emplace_back([&, i] { EXPECT_TRUE(client_->set(key(i), "1").ok()); });
        for (std::thread& writer : writers) writer.join();
      },
      [&] { return *other_->count("k") == kWriters; },
      [&] {
        for (int i = 0; i < kWriters; ++i) ASSERT_TRUE(other_->set(key(i), "2").ok());
      });
  for (int i = 0; i < kWriters; ++i) EXPECT_EQ(*other_->get(key(i)), "2") << i;
}

// The store forgets answers after a while, so a client that was away for longer does not repeat its
// request.
TEST_F(StoreClientRepeatTest, DoesNotRepeatOldRequests) {
  ClientOptions options = server_.options();
  options.repeat_for = 0ms;
  client_ = connect(options);
  lose_the_answer(
      [&] {
        const Result<void> set = client_->set("k", "1");
        ASSERT_FALSE(set.ok());
        EXPECT_EQ(set.error().code, Code::kUnavailable);
        EXPECT_NE(set.error().message.find("it is unknown whether"), std::string::npos);
      },
      [&] { return has("k", "1"); }, [&] { ASSERT_TRUE(other_->set("k", "2").ok()); });
  EXPECT_TRUE(has("k", "2"));
  EXPECT_TRUE(client_->set("k", "3").ok());
}

// ---- Watches ------------------------------------------------------------------------------------

TEST_F(StoreClientTest, AWatchReportsChangesInOrder) {
  ServerThread server;
  const auto client = server.client();
  const auto other = server.client(1);
  const std::uint32_t watch = client->watch("w/").value();
  EXPECT_EQ(client->next_change(watch, 10ms).error().code, Code::kDeadlineExceeded);
  ASSERT_TRUE(other->set("x", "elsewhere").ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(other->set("w/k", std::to_string(i)).ok());
  ASSERT_TRUE(*other->remove("w/k"));
  for (int i = 0; i < 100; ++i) {
    const Changed change = client->next_change(watch, scaled_time(20s)).value();
    EXPECT_EQ(change.kind, Changed::Kind::kSet);
    EXPECT_EQ(change.key, "w/k");
    EXPECT_EQ(change.value, std::to_string(i));
  }
  EXPECT_EQ(client->next_change(watch, scaled_time(20s)).value().kind, Changed::Kind::kDeleted);
  std::thread waiting([&] {
    EXPECT_EQ(client->next_change(watch, scaled_time(20s)).error().code, Code::kCancelled);
  });
  std::this_thread::sleep_for(20ms);
  client->end_watch(watch);
  waiting.join();
  EXPECT_TRUE(eventually([&] {
    return server.on_loop([](Server& one) { return one.engine().open_requests() == 0; });
  }));
  ASSERT_TRUE(other->set("w/k", "again").ok());
  EXPECT_EQ(client->next_change(watch, 10ms).error().code, Code::kCancelled);
  EXPECT_TRUE(client->ping().ok());
}

// The watch first returns the changes received before the loss, then an overflow, then later
// changes.
TEST_F(StoreClientTest, AWatchContinuesAfterALostConnection) {
  ServerThread server;
  StoreProxy proxy(server.native_port);
  ClientOptions options = server.options();
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  const auto client = Client::connect(options).value();
  const auto other = server.client(1);
  const std::uint32_t watch = client->watch("w/").value();
  ASSERT_TRUE(other->set("w/before", "1").ok());
  ASSERT_EQ(*client->wait_get("w/before", scaled_time(20s)), "1");  // Its change was sent first.
  proxy.cut();
  ASSERT_TRUE(other->set("w/lost", "2").ok());
  EXPECT_EQ(client->next_change(watch, scaled_time(20s)).value().key, "w/before");
  EXPECT_EQ(client->next_change(watch, scaled_time(20s)).value().kind, Changed::Kind::kOverflow);
  ASSERT_TRUE(other->set("w/after", "3").ok());
  EXPECT_EQ(client->next_change(watch, scaled_time(20s)).value().key, "w/after");
}

// If too many changes are pending, all of them are dropped, including those that the store could
// not send.
TEST_F(StoreClientTest, BoundsAnUnreadWatch) {
  ServerThread server;
  const auto client = server.client();
  const auto other = server.client(1);
  const std::uint32_t watch = client->watch("w/").value();
  const std::string value(1 << 20, 'x');
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(other->set("w/k", value).ok());
  bool is_missed = false;
  for (int reported = 0; !is_missed && reported < 200; ++reported) {
    const auto change = client->next_change(watch, scaled_time(20s));
    ASSERT_TRUE(change.ok()) << change.error().message;
    is_missed = change->kind == Changed::Kind::kOverflow;
  }
  EXPECT_TRUE(is_missed);
  ASSERT_TRUE(other->set("w/last", "end").ok());
  while (client->next_change(watch, scaled_time(20s)).value().key != "w/last") continue;
}

// ---- Misbehaving servers ------------------------------------------------------------------------

// Performs the handshake with the right token and then sends what a test wants.
class HostileServer {
 public:
  explicit HostileServer(std::function<void(int fd)> behave)
      : listener_(listen_tcp("127.0.0.1", 0).value()), behave_(std::move(behave)) {
    thread_ = std::thread([this] {
      while (!stopped_) {
        pollfd polled{listener_, POLLIN, 0};
        if (poll(&polled, 1, 20) <= 0) continue;
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) continue;
        behave_(fd);
        open_.push_back(fd);
      }
    });
  }
  ~HostileServer() {
    stopped_ = true;
    thread_.join();
    ::close(listener_);
    for (const int fd : open_) ::close(fd);
  }
  ClientOptions options() const {
    ClientOptions options;
    options.address = address_of(listener_);
    options.job_id = test::kJobId;
    options.token = test::kToken;
    options.connect_timeout = 500ms;
    options.request_timeout = 500ms;
    return options;
  }
  static std::string read(int fd, std::size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t count = recv(fd, text.data(), bytes, MSG_WAITALL);
    return count == static_cast<ssize_t>(bytes) ? text : "";
  }
  static void say(int fd, const std::string& bytes) {
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  static void greet(int fd) {
    const std::string hello = read(fd, kHelloBytes);
    if (hello.empty()) return;
    say(fd, make_challenge(hello, test::kToken, random_bytes(kNonceBytes),
                           std::string(kEpochBytes, 'e')));
    read(fd, kProofBytes);
    std::string welcome;
    append_frame(welcome, {0, 0}, {});
    say(fd, welcome);
  }

 private:
  const int listener_;
  std::function<void(int)> behave_;
  std::atomic<bool> stopped_ = false;
  std::vector<int> open_;
  std::thread thread_;
};

TEST_F(StoreClientTest, ReportsHostileGreetingsAsTypedErrors) {
  const std::vector<std::pair<std::function<void(int)>, Code>> table = {
      {[](int) {}, Code::kUnavailable},
      {[](int fd) { HostileServer::say(fd, std::string(10, 'x')); }, Code::kUnavailable},
      {[](int fd) { HostileServer::say(fd, std::string(1000, 'x')); }, Code::kUnauthenticated},
      {[](int fd) { ::shutdown(fd, SHUT_RDWR); }, Code::kUnauthenticated},
      // Sends the client's own greeting back.
      {[](int fd) { HostileServer::say(fd, HostileServer::read(fd, kHelloBytes)); },
       Code::kUnauthenticated},
      {[](int fd) {
         HostileServer::greet(fd);
         // The welcome was valid; a second one is not read.
         HostileServer::say(fd, std::string(9, '\0'));
       },
       Code::kUnavailable},
  };
  for (std::size_t i = 0; i + 1 < table.size(); ++i) {
    HostileServer server(table[i].first);
    ClientOptions options = server.options();
    if (table[i].second == Code::kUnauthenticated) options.connect_timeout = scaled_time(5s);
    const auto begin = std::chrono::steady_clock::now();
    const auto client = Client::connect(options);
    ASSERT_FALSE(client.ok()) << i;
    EXPECT_EQ(client.error().code, table[i].second) << i << " " << client.error().message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(4s)) << i;
  }
}

TEST_F(StoreClientTest, ReportsHostileRepliesAsTypedErrors) {
  const auto frame = [](std::uint8_t kind, std::uint32_t id, const std::string& payload) {
    std::string out;
    append_frame(out, {kind, id}, payload);
    return out;
  };
  std::string text;
  put_text(text, "value");
  const std::vector<std::pair<std::string, Code>> table = {
      {"", Code::kDeadlineExceeded},
      {frame(0, 99, text), Code::kDeadlineExceeded},  // For an unknown request.
      {"\xff\xff\xff\xff", Code::kUnavailable},       // A length of four gigabytes.
      {std::string(64, '\0'), Code::kUnavailable},
      {frame(99, 1, text), Code::kUnavailable},
      {frame(5, 1, "short"), Code::kUnavailable},
      {frame(0, 1, text.substr(0, 6)), Code::kDataLoss},
      {frame(0, 1, text + "x"), Code::kDataLoss},
      {frame(5, 1, text), Code::kNotFound},
  };
  for (std::size_t i = 0; i < table.size(); ++i) {
    HostileServer server([&](int fd) {
      HostileServer::greet(fd);
      HostileServer::say(fd, table[i].first);
    });
    const auto client = Client::connect(server.options());
    ASSERT_TRUE(client.ok()) << i;
    const auto begin = std::chrono::steady_clock::now();
    const auto value = (*client)->get("k");
    ASSERT_FALSE(value.ok()) << i;
    EXPECT_EQ(value.error().code, table[i].second) << i << " " << value.error().message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(3s)) << i;
  }
}

TEST_F(StoreClientTest, StopsListingAfterTheLimit) {
  std::string page;
  put_u8(page, 1);
  put_u32(page, 1);
  put_text(page, "same");
  HostileServer server([&](int fd) {
    HostileServer::greet(fd);
    std::string out;
    for (std::uint32_t id = 1; id < 10; ++id) append_frame(out, {0, id}, page);
    HostileServer::say(fd, out);
  });
  const auto client = Client::connect(server.options()).value();
  const auto list = client->list("");
  ASSERT_FALSE(list.ok());
}

TEST_F(StoreClientTest, AChildMustNotUseItsParentsClient) {
  ServerThread server;
  const auto client = server.client();
  const pid_t child = fork();
  if (child == 0) {
    const Result<void> pinged = client->ping();
    client->cancel();
    _exit(!pinged.ok() && pinged.error().code == Code::kFailedPrecondition ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->ping().ok()) << "the parent's client still works";
}

}  // namespace
}  // namespace ivy::store
