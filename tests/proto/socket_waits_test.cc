// SPDX-License-Identifier: Apache-2.0
#include "proto/os/socket_waits.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <climits>
#include <functional>
#include <string>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

using std::chrono::microseconds;

DescriptorPair make_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

TEST(Clock, ClampsADeadlineThatPollCannotExpress) {
  EXPECT_EQ(milliseconds_until(steady_now() + std::chrono::hours(24 * 365)), INT_MAX);
  EXPECT_EQ(milliseconds_until(steady_now() - std::chrono::hours(24 * 365)), 0);
}

// Callers use only the clock to tell a timeout from a peer that hung up.
TEST(SocketWaits, DoesNotTimeOutBeforeTheDeadline) {
  const DescriptorPair pair = make_pair();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto end = steady_now() + microseconds(500 + 37 * attempt);
    std::string bytes;
    EXPECT_FALSE(receive_all(pair.first.get(), bytes, 1, {end}));
    EXPECT_GE(steady_now(), end);
  }
}

TEST(SocketWaits, StopsWhenCancelled) {
  const DescriptorPair pair = make_pair();
  const std::function<bool()> may_continue = [] { return false; };
  const auto end = steady_now() + std::chrono::minutes(10);
  EXPECT_FALSE(wait_for(pair.first.get(), POLLIN, {end, &may_continue}));
  EXPECT_FALSE(pause_for(std::chrono::minutes(5), {end, &may_continue}));
}

TEST(SocketWaits, ReceivesSentBytesAndTheEnd) {
  DescriptorPair pair = make_pair();
  const WaitLimit limit{steady_now() + std::chrono::minutes(10)};
  ASSERT_TRUE(send_all(pair.second.get(), "hello", limit));
  pair.second.reset();
  std::string bytes;
  EXPECT_TRUE(receive_all(pair.first.get(), bytes, 5, limit));
  EXPECT_EQ(bytes, "hello");
  EXPECT_FALSE(receive_all(pair.first.get(), bytes, 1, limit));
  EXPECT_FALSE(send_all(pair.first.get(), "nobody reads this", limit));
}

}  // namespace
}  // namespace ivy
