// SPDX-License-Identifier: Apache-2.0
// Hosts that synchronize through the real store, each with its own client and thread.
#include "rendezvous/client/host_fence.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/rendezvous/server_thread.h"
#include "tests/support/leak_guard.h"

namespace ivy::store {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::ServerThread;
using Blobs = std::vector<std::string>;

class HostFenceTest : public testing::Test {
 protected:
  // Runs `host(number, fence)` for all hosts at the same time.
  template <class Host>
  void on_hosts(std::uint32_t count, Host host) {
    std::vector<std::thread> threads;
    for (std::uint32_t number = 0; number < count; ++number) {
      threads.emplace_back([&, number] {
        const auto client = server_.client(std::nullopt);
        HostFence fence(*client, "pmi", {number, count});
        host(number, fence);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  test::LeakGuard leaks_;
  ServerThread server_;
};

TEST_F(HostFenceTest, ReturnsAllBlobsInHostOrder) {
  constexpr std::uint32_t kHosts = 5;
  constexpr int kRounds = 20;
  on_hosts(kHosts, [](std::uint32_t host, HostFence& fence) {
    for (int round = 0; round < kRounds; ++round) {
      const auto blob = [&](std::uint32_t of) {
        return std::string("\0\n", 2) + std::to_string(of) + " of " + std::to_string(round);
      };
      Blobs expected;
      for (std::uint32_t other = 0; other < kHosts; ++other) expected.push_back(blob(other));
      const Result<Blobs> all = fence.gather(blob(host));
      ASSERT_TRUE(all.ok()) << all.error().message;
      EXPECT_EQ(*all, expected);
    }
  });
  EXPECT_EQ(*server_.client()->count("ivy/pmi/"), kHosts)
      << "only the keys of the last round remain";
}

TEST_F(HostFenceTest, CountsRoundsOfSubsetsSeparately) {
  on_hosts(4, [](std::uint32_t host, HostFence& fence) {
    EXPECT_EQ(*fence.gather(""), Blobs(4));
    if (host % 2 == 1) {
      EXPECT_EQ(*fence.gather_among({3, 1}, "odd", std::to_string(host)), (Blobs{"3", "1"}));
      EXPECT_EQ(*fence.gather_among({1, 3}, "up", std::to_string(host)), (Blobs{"1", "3"}));
      EXPECT_EQ(*fence.gather_among({host}, "alone", "x"), (Blobs{"x"}));
    }
    EXPECT_EQ(*fence.gather(std::to_string(host)), (Blobs{"0", "1", "2", "3"}));
    EXPECT_EQ(fence.gather_among({host + 1}, "other", "").error().code, Code::kInvalidArgument);
    EXPECT_EQ(fence.gather_among({host}, "a/b", "").error().code, Code::kInvalidArgument);
  });
}

TEST_F(HostFenceTest, RemovesTheKeysOfAForgottenGroup) {
  on_hosts(3, [](std::uint32_t, HostFence& fence) {
    for (int turn = 0; turn < 200; ++turn) {
      for (const char* phase : {"begin ", "end "}) {
        const std::string blob = phase + std::to_string(turn);
        EXPECT_EQ(*fence.gather_among({0, 1, 2}, "some", blob), Blobs(3, blob));
      }
      EXPECT_TRUE(fence.forget({0, 1, 2}, "some").ok());
      EXPECT_TRUE(fence.forget({0, 1, 2}, "some").ok()) << "there are no keys left";
    }
    EXPECT_TRUE(fence.forget({0}, "alone").ok());
  });
  EXPECT_EQ(*server_.client()->count("ivy/pmi/"), 0u);
}

TEST_F(HostFenceTest, GathersMoreBytesThanOneReplyHolds) {
  constexpr std::uint32_t kHosts = 9;
  on_hosts(kHosts, [](std::uint32_t host, HostFence& fence) {
    const std::string blob(kMaxValueBytes, static_cast<char>('a' + host));
    const Result<Blobs> all = fence.gather(blob);
    ASSERT_TRUE(all.ok()) << all.error().message;
    for (std::uint32_t other = 0; other < kHosts; ++other) {
      ASSERT_EQ((*all)[other].size(), kMaxValueBytes);
      EXPECT_EQ((*all)[other].back(), static_cast<char>('a' + other));
    }
  });
}

TEST_F(HostFenceTest, WaitsForAMissingHostUntilCancelled) {
  const auto client = server_.client(std::nullopt);
  HostFence fence(*client, "pmi", {0, 2});
  std::thread canceller([&] {
    EXPECT_TRUE(eventually([&] { return *server_.client()->count("ivy/pmi/") == 1; }));
    std::this_thread::sleep_for(50ms);
    client->cancel();
  });
  EXPECT_EQ(fence.gather("x").error().code, Code::kCancelled);
  canceller.join();
}

TEST_F(HostFenceTest, ReportsALostStore) {
  ClientOptions options = server_.options();
  options.may_redial = false;
  const std::unique_ptr<Client> client = Client::connect(options).value();
  HostFence fence(*client, "pmi", {0, 2});
  server_.stop();
  EXPECT_FALSE(fence.gather("x").ok());
}

}  // namespace
}  // namespace ivy::store
