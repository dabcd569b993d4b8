// SPDX-License-Identifier: Apache-2.0
// Several connections between two ranks of different hosts: the division of messages among them,
// and settings that may differ between the two sides.
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "comm/transports/tcp/peer_connections.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

TEST(StripeTest, CoversTheMessageInWholeLines) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMinStripe, 2 * kMinStripe - 1,
                                  2 * kMinStripe, 5 * kMinStripe + 63, std::size_t{10'000'019}}) {
    for (const std::uint32_t streams : {1U, 2U, 3U, 7U, kStreamsMax}) {
      const std::uint32_t count = stripe_count(bytes, streams);
      ASSERT_GE(count, 1U);
      ASSERT_LE(count, streams);
      std::size_t end = 0;
      for (std::uint32_t index = 0; index < count; ++index) {
        const Stripe stripe = stripe_of(bytes, count, index);
        ASSERT_EQ(stripe.begin, end);
        ASSERT_EQ(stripe.begin % 64, 0U);
        EXPECT_TRUE(count == 1 || stripe.bytes() >= kMinStripe / 2);
        end = stripe.end;
      }
      ASSERT_EQ(end, bytes) << streams;
    }
  }
}

TEST(StripeTest, DoesNotDivideShortMessages) {
  EXPECT_EQ(stripe_count(2 * kMinStripe - 1, 8), 1U);
  EXPECT_EQ(stripe_count(2 * kMinStripe, 8), 2U);
  EXPECT_EQ(stripe_count(std::size_t{1} << 30, 8), 8U);
}

TEST(StreamsTest, RejectsAnInvalidNumberOfStreams) {
  EXPECT_EQ(wanted_streams(nullptr).value(), 0U);
  EXPECT_EQ(wanted_streams("").value(), 0U);
  EXPECT_EQ(wanted_streams("3").value(), 3U);
  for (const char* const text : {"0", "17", "-1", "2x", "two", " 2"}) {
    const Result<std::uint32_t> streams = wanted_streams(text);
    ASSERT_FALSE(streams.ok()) << text;
    EXPECT_NE(streams.error().message.find(text), std::string::npos);
  }
}

TEST(StreamsTest, UsesFewerStreamsForManyRanks) {
  EXPECT_EQ(default_stream_count(true, 2), kStreamsOnOneMachine);
  EXPECT_EQ(default_stream_count(false, 2), kStreamsBetweenMachines);
  EXPECT_EQ(default_stream_count(false, kDefaultSockets), 1U);
  EXPECT_EQ(default_stream_count(false, 100'000), 1U);
}

// A connection that announces an impossible stream for its channel is closed.
TEST(StreamsTest, ClosesConnectionsWithAnImpossibleStream) {
  PeerCredentials credentials;
  credentials.job_id = std::string(32, '0');
  credentials.token = std::string(32, 't');
  const auto connections = PeerConnections::listen("127.0.0.1", credentials).value();
  struct Announced {
    std::uint32_t stream;
    std::uint32_t streams;
  };
  for (const Announced& one :
       {Announced{0, 0}, Announced{2, 2}, Announced{0, kStreamsMax + 1}, Announced{1, 2}}) {
    PeerChannel channel;
    channel.communicator = "world";
    channel.stream = one.stream;
    const PeerSocket dialled =
        connections
            ->dial(connections->address(), channel, one.streams, seconds(5), [] { return true; })
            .value();
    const PeerSocket taken = connections->take(channel, one.stream == 1 ? seconds(5) : seconds(0));
    if (one.stream == 1) {
      ASSERT_GE(taken.socket, 0);
      EXPECT_EQ(taken.streams, 2U);
      close(taken.socket);
    } else {
      pollfd hung_up = {dialled.socket, POLLIN, 0};
      EXPECT_EQ(poll(&hung_up, 1, 5000), 1);
      char byte = 0;
      EXPECT_EQ(recv(dialled.socket, &byte, 1, 0), 0);
      EXPECT_LT(connections->take(channel, milliseconds(0)).socket, 0);
    }
    close(dialled.socket);
  }
}

std::size_t open_sockets() {
  std::size_t sockets = 0;
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof peer;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0) ++sockets;
  }
  return sockets;
}

// Additional streams are created by the first message that is long enough for them.
TEST(StreamsTest, AreCreatedOnDemand) {
  const std::vector<RankEnd> ends = run_world(host_each(2), [](int rank) {
    setenv("IVY_TCP_STREAMS", "3", 1);
    const World world;
    ASSERT_TRUE(world);
    // The dialling rank decides when; the other rank's listener accepts at any time.
    const bool dials = rank == 0;
    const std::size_t before = open_sockets();
    std::vector<float> values(1'000'000, 1.0F);
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, values.data(), 10, IVY_F32, IVY_SUM, nullptr), 0);
    if (dials) {
      EXPECT_EQ(open_sockets(), before + 1);
    }
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, values.data(), values.size(), IVY_F32, IVY_SUM,
                             nullptr),
              0);
    if (dials) {
      EXPECT_EQ(open_sockets(), before + 3);
    }
    EXPECT_EQ(values[5], 4.0F);
    EXPECT_EQ(values.back(), 2.0F);
  });
  expect_ok(ends);
}

// One side expects additional streams, which the other never creates for its short message.
TEST(StreamsTest, ReportsAMismatchOfLengths) {
  for (const int longer : {0, 1}) {
    const std::vector<RankEnd> ends = run_world(host_each(2), [&](int rank) {
      setenv("IVY_TCP_STREAMS", "3", 1);
      ivy_options options = {};
      options.struct_bytes = sizeof options;
      options.rank = -1;
      options.world_size = -1;
      options.timeout_ms = 20'000;
      ivy_comm* world = nullptr;
      ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
      std::vector<float> values(1'000'000, 1.0F);
      const std::size_t count = rank == longer ? values.size() : 10;
      EXPECT_EQ(
          ivy_all_reduce(world, IVY_IN_PLACE, values.data(), count, IVY_F32, IVY_SUM, nullptr),
          IVY_ABORTED);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("1000000 f32"), std::string::npos) << text;
      EXPECT_NE(text.find("10 f32"), std::string::npos) << text;
      ivy_finalize(world);
    });
    expect_ok(ends);
  }
}

TEST(StreamsTest, InitRejectsAnInvalidNumber) {
  const std::vector<RankEnd> ends = run_world(host_each(2), [](int) {
    setenv("IVY_TCP_STREAMS", "many", 1);
    ivy_comm* world = nullptr;
    EXPECT_EQ(ivy_init(nullptr, &world), IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("IVY_TCP_STREAMS is many"), std::string::npos);
  });
  expect_ok(ends);
}

}  // namespace
}  // namespace ivy::comm::test
