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

// A caller tells a late answer from a peer that has hung up by the clock alone.
TEST(SocketWaits, IsNotTooLateBeforeTheEnd) {
  const DescriptorPair pair = make_pair();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto end = steady_now() + microseconds(500 + 37 * attempt);
    std::string bytes;
    EXPECT_FALSE(receive_all(pair.ours.get(), bytes, 1, {end}));
    EXPECT_GE(steady_now(), end);
  }
}

TEST(SocketWaits, EndsWhenItIsCalledOff) {
  const DescriptorPair pair = make_pair();
  const std::function<bool()> may_go_on = [] { return false; };
  const auto end = steady_now() + std::chrono::minutes(10);
  EXPECT_FALSE(wait_for(pair.ours.get(), POLLIN, {end, &may_go_on}));
  EXPECT_FALSE(pause_for(std::chrono::minutes(5), {end, &may_go_on}));
}

TEST(SocketWaits, ReceivesWhatWasSentAndSeesTheEnd) {
  DescriptorPair pair = make_pair();
  const Patience patience{steady_now() + std::chrono::minutes(10)};
  ASSERT_TRUE(send_all(pair.theirs.get(), "hello", patience));
  pair.theirs.reset();
  std::string bytes;
  EXPECT_TRUE(receive_all(pair.ours.get(), bytes, 5, patience));
  EXPECT_EQ(bytes, "hello");
  EXPECT_FALSE(receive_all(pair.ours.get(), bytes, 1, patience));
  EXPECT_FALSE(send_all(pair.ours.get(), "nobody reads this", patience));
}

}  // namespace
}  // namespace ivy
