// SPDX-License-Identifier: Apache-2.0
// The rendezvous of ranks before their first NCCL call: bootstrap() of several threads with a real
// store.
#include "comm/nccl/nccl_bootstrap.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/os/listening_socket.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/server/server.h"
#include "tests/support/eventually.h"

namespace ivy::comm::nccl {
namespace {

using ivy::test::scaled_time;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

const std::string kJob = "00112233445566778899aabbccddeeff";
const std::string kToken(32, 't');

class Store {
 public:
  Store() {
    store::ServerOptions options;
    options.job_id = kJob;
    options.token = kToken;
    server_ = std::make_unique<store::Server>(loop_, std::move(options));
    const int listening = listen_tcp("127.0.0.1", 0).value();
    address_ = store::address_of(listening);
    server_->listen(listening, store::Server::Dialect::kNative);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Store() { end(); }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void end() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
    server_.reset();
  }
  std::unique_ptr<store::Client> client(std::uint32_t rank) const {
    store::ClientOptions options;
    options.address = address_;
    options.job_id = kJob;
    options.token = kToken;
    options.rank = rank;
    auto made = store::Client::connect(options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? std::move(made).value() : nullptr;
  }

 private:
  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  std::unique_ptr<store::Server> server_;
  std::string address_;
  std::thread thread_;
};

class FakeOwner final : public BootstrapOwner {
 public:
  MaybeFailure find_failure() override { return std::nullopt; }
  MaybeFailure make_id(steady_clock::time_point, UniqueId& id) override {
    std::strcpy(id.bytes, "the id");
    return std::nullopt;
  }
};

// Returns the options of a rank in a communicator of the world ranks 4, 5 and 6.
BootstrapOptions options_of(std::int32_t rank, store::Client* store, milliseconds timeout) {
  BootstrapOptions options;
  options.communicator = "three";
  options.key = "nccl/three";
  options.store = store;
  options.rank_names = {"rank 4 (a, pid 1)", "rank 5 (a, pid 2)", "rank 6 (b, pid 3)"};
  options.world_ranks = {4, 5, 6};
  options.rank = rank;
  options.deadline = steady_clock::now() + scaled_time(timeout);
  static FakeOwner owner;
  options.owner = &owner;
  return options;
}

RankFacts facts_of(std::int32_t rank) {
  RankFacts facts;
  facts.rank = rank + 4;
  facts.host = "a";
  facts.machine = "boot";
  facts.nccl_version = 23007;
  facts.uuid = "uuid" + std::to_string(rank);
  facts.interfaces = {{"eth0", "10.0.0.1"}};
  facts.limits.shared_memory_free = 1ULL << 30;
  return facts;
}

TEST(ReadyTest, DistributesTheIdOfRankZero) {
  Store store;
  std::vector<BootstrapResult> ready(3);
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto client = store.client(static_cast<std::uint32_t>(rank));
      if (client == nullptr) return;
      const BootstrapOptions options = options_of(rank, client.get(), seconds(20));
      ready[static_cast<std::size_t>(rank)] = bootstrap(options, facts_of(rank));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const BootstrapResult& one : ready) {
    EXPECT_FALSE(one.failure.has_value()) << one.failure->text;
    ASSERT_EQ(one.ids.size(), 1U);
    EXPECT_STREQ(one.ids[0].bytes, "the id");
  }
}

TEST(ReadyTest, NamesMissingRanksWithTheirProgress) {
  const Store store;
  const auto first = store.client(0);
  const auto third = store.client(2);
  ASSERT_TRUE(first != nullptr && third != nullptr);
  report_phase(options_of(2, third.get(), seconds(1)), Phase::kBegun);
  const BootstrapOptions options = options_of(0, first.get(), milliseconds(500));
  const BootstrapResult ready = bootstrap(options, facts_of(0));
  ASSERT_TRUE(ready.failure.has_value());
  EXPECT_EQ(ready.failure->kind, FailureKind::kTimeout);
  EXPECT_EQ(ready.failure->rank, 5);
  EXPECT_STREQ(ready.failure->text,
               "NCCL of communicator three: ready barrier: rank 5 (a, pid 2) (it has not started), "
               "rank 6 (b, pid 3) (it loads the driver and NCCL) did not become ready in time");
}

TEST(ReadyTest, NamesUnfinishedRanksWithTheirProgress) {
  const Store store;
  const auto first = store.client(0);
  const auto third = store.client(2);
  ASSERT_TRUE(first != nullptr && third != nullptr);
  report_phase(options_of(2, third.get(), seconds(1)), Phase::kInit);
  EXPECT_EQ(
      describe_unfinished_ranks(options_of(0, first.get(), seconds(1))),
      "; also not finished: rank 5 (a, pid 2) (it has not started NCCL's init), rank 6 (b, pid 3) "
      "(it is in NCCL's init)");
  report_phase(options_of(2, third.get(), seconds(1)), Phase::kDone);
  report_phase(options_of(1, third.get(), seconds(1)), Phase::kDone);
  EXPECT_EQ(describe_unfinished_ranks(options_of(0, first.get(), seconds(1))), "");
}

}  // namespace
}  // namespace ivy::comm::nccl
