// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: every type at the sizes where the algorithm changes, in every kind of
// call; timeouts, failures and finalize, for blocking calls and for work.
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "comm/contract/fingerprint.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/shm/shared_layout.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

using Bytes = std::vector<std::uint8_t>;

// ---- Every type and size -----------------------------------------------------------------------

// Returns data with a prime period that differ completely for another sender, receiver or turn.
Bytes data_of(int from, int to, unsigned turn, std::size_t bytes) {
  Bytes data(bytes);
  const auto first = static_cast<std::size_t>(from * 31 + to * 7) + turn * 13;
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::uint8_t>((first + i) % 251);
  return data;
}

// A buffer with an offset of `skip` bytes and guards on both sides.
struct Guarded {
  Guarded(std::size_t bytes, std::size_t skip) : all(bytes + 16 + skip, 0xa5), begin(8 + skip) {}
  std::uint8_t* data() { return all.data() + begin; }
  bool holds(const Bytes& wanted) const {
    Bytes whole(all.size(), 0xa5);
    std::copy(wanted.begin(), wanted.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin));
    return whole == all;
  }
  Bytes all;
  std::size_t begin;
};

enum class Calling : std::uint8_t { kBlocking, kWork, kBoth };  // kBoth: sendrecv.

// One round: every rank sends to the rank `step` positions after it.
void pass_on(ivy_comm* comm, int step, Calling calling, int dtype, std::size_t count,
             unsigned turn) {
  const int size = ivy_comm_size(comm);
  const int rank = ivy_comm_rank(comm);
  const int to = (rank + step) % size;
  const int from = (rank + size - step) % size;
  const std::size_t bytes = count * element_bytes(static_cast<Dtype>(dtype));
  const std::size_t skip = turn % 3;
  const auto tag = static_cast<int>(turn);
  Guarded send(bytes, skip);
  Guarded receive(bytes, 2 - skip);
  const Bytes given = data_of(rank, to, turn, bytes);
  std::copy(given.begin(), given.end(), send.data());
  ivy_message message = {};
  message.struct_bytes = sizeof message;
  int code = IVY_OK;
  if (calling == Calling::kBoth) {
    code = ivy_sendrecv(comm, send.data(), count, to, tag, receive.data(), count, from, tag, dtype,
                        &message, nullptr);
  } else {
    // The receive is work, because a blocking send could wait for the peer's receive.
    ivy_work* works[2] = {};
    const ivy_call receiving = call_for_work(&works[0]);
    const ivy_call sending = call_for_work(&works[1]);
    const int source = turn % 4 == 3 && size == 2 ? IVY_ANY_SOURCE : from;
    code = ivy_recv(comm, receive.data(), count, dtype, source, turn % 4 == 2 ? IVY_ANY_TAG : tag,
                    nullptr, &receiving);
    if (code == IVY_OK) {
      code = ivy_send(comm, send.data(), count, dtype, to, tag,
                      calling == Calling::kWork ? &sending : nullptr);
    }
    for (ivy_work* const work : works) {
      if (work == nullptr) continue;
      if (code == IVY_OK) code = ivy_work_wait(work, -1);
      if (code == IVY_OK && work == works[0]) code = ivy_work_message(work, &message);
      ivy_work_free(work);
    }
  }
  ASSERT_EQ(code, IVY_OK) << ivy_last_error();
  ASSERT_EQ(message.source, from);
  ASSERT_EQ(message.tag, tag);
  ASSERT_EQ(message.bytes, bytes);
  ASSERT_TRUE(receive.holds(data_of(from, rank, turn, bytes))) << "wrong data";
  ASSERT_TRUE(send.holds(given)) << "wrote into the send buffer";
}

class MessageMatrixTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(MessageMatrixTest, TransfersEveryTypeAndSizeByEveryMethod) {
  expect_ok(run_world(GetParam(), [](int) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    const std::size_t big = size <= 4 ? (std::size_t{3} << 20) + 5 : 2 * kRingBytes + 5;
    unsigned turn = 0;
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      const std::size_t element = element_bytes(static_cast<Dtype>(dtype));
      // Sizes around the ring's, including the header of 24 bytes.
      for (const std::size_t bytes :
           {std::size_t{0}, element, 1031 * element, kRingBytes - 24, kRingBytes, big}) {
        const bool is_large = bytes >= kRingBytes - 24;
        // Large messages do not depend on the type, so use every fifth type.
        if (is_large && dtype % 5 != 0) continue;
        const auto calling = static_cast<Calling>(turn % 3);
        const int step = static_cast<int>(turn) % (size + 1) % size;  // Also to itself.
        SCOPED_TRACE(std::string(dtype_name(static_cast<Dtype>(dtype))) + ", " +
                     std::to_string(bytes) + " bytes, way " +
                     std::to_string(static_cast<int>(calling)) + ", step " + std::to_string(step));
        pass_on(world, step, calling, dtype, bytes / element, turn++);
        if (::testing::Test::HasFailure()) return;
      }
    }
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

// Receives from all ranks, one message each.
TEST_P(MessageMatrixTest, ReceivesFromAnyRank) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    if (rank != 0) {
      ASSERT_EQ(ivy_send(world, &rank, 1, IVY_I32, 0, rank, nullptr), IVY_OK) << ivy_last_error();
    }
    std::vector<bool> has_come(static_cast<std::size_t>(size), false);
    for (int i = 1; i < size && rank == 0; ++i) {
      int got = 0;
      ivy_message message = {};
      message.struct_bytes = sizeof message;
      ASSERT_EQ(ivy_recv(world, &got, 1, IVY_I32, IVY_ANY_SOURCE, IVY_ANY_TAG, &message, nullptr),
                IVY_OK)
          << ivy_last_error();
      EXPECT_EQ(got, message.source);
      EXPECT_EQ(got, message.tag);
      EXPECT_FALSE(has_come[static_cast<std::size_t>(got)]);
      has_come[static_cast<std::size_t>(got)] = true;
    }
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, MessageMatrixTest,
                         ::testing::Values(one_host(2), one_host(5), one_host(16), host_each(2),
                                           host_each(7), Hosts{2, 3}, Hosts{4, 4}),
                         name_of_world);

// ---- Failures ----------------------------------------------------------------------------------

class MessageFailureTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MessageFailureTest,
                         ::testing::Values(one_host(2), host_each(2), Hosts{2, 1}), name_of_world);

constexpr std::size_t kLarge = std::size_t{64} << 20;  // More than a ring or socket holds.

struct Waiting {
  const char* name;
  // Waits for rank 1, which does nothing.
  std::function<int(ivy_comm*, std::uint8_t*, const ivy_call&)> call;
};

int wait_for_work(const ivy_call& call, const std::function<int(const ivy_call*)>& start) {
  ivy_work* work = nullptr;
  ivy_call asynchronous = call;
  asynchronous.work = &work;
  int code = start(&asynchronous);
  if (code == IVY_OK) code = ivy_work_wait(work, -1);
  ivy_work_free(work);
  return code;
}

std::vector<Waiting> waits() {
  const auto receive = [](ivy_comm* comm, std::uint8_t* data, const ivy_call* call) {
    return ivy_recv(comm, data, 8, IVY_U8, 1, 3, nullptr, call);
  };
  const auto send = [](ivy_comm* comm, std::uint8_t* data, const ivy_call* call) {
    return ivy_send(comm, data, kLarge, IVY_U8, 1, 3, call);
  };
  const auto as_work = [](auto start) {
    return [start](ivy_comm* comm, std::uint8_t* data, const ivy_call& call) {
      return wait_for_work(call, [&](const ivy_call* with) { return start(comm, data, with); });
    };
  };
  const auto blocking = [](auto start) {
    return [start](ivy_comm* comm, std::uint8_t* data, const ivy_call& call) {
      return start(comm, data, &call);
    };
  };
  const auto both = [](ivy_comm* comm, std::uint8_t* data, const ivy_call* call) {
    return ivy_sendrecv(comm, data, 8, 1, 3, data + 8, 8, 1, 3, IVY_U8, nullptr, call);
  };
  return {{"recv", blocking(receive)},
          {"irecv", as_work(receive)},
          {"send", blocking(send)},
          {"isend", as_work(send)},
          {"sendrecv", blocking(both)}};
}

std::vector<ivy_comm*> group_for_each(ivy_comm* world, int rank) {
  std::vector<ivy_comm*> groups(waits().size());
  for (ivy_comm*& group : groups) {
    EXPECT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
  }
  return groups;
}

void expect_timeouts(const std::vector<ivy_comm*>& groups) {
  std::vector<std::uint8_t> data(kLarge);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Waiting waiting = waits()[i];
    SCOPED_TRACE(waiting.name);
    const std::int64_t begun = monotonic_ms();
    const int code = waiting.call(groups[i], data.data(), call_with_timeout(milliseconds(100)));
    const std::string text = ivy_last_error();
    EXPECT_EQ(code, IVY_DEADLINE_EXCEEDED) << text;
    EXPECT_EQ(last_failure().rank, 1) << text;
    EXPECT_NE(text.find("rank 1 "), std::string::npos) << text;
    EXPECT_GE(monotonic_ms() - begun, 90);
    EXPECT_EQ(ivy_barrier(groups[i], nullptr), IVY_DEADLINE_EXCEEDED);
  }
}

// The timeout ends the wait, for work too, and breaks the communicator on every rank.
TEST_P(MessageFailureTest, TimesOutNamingALateRank) {
  Shared<std::atomic<bool>> is_over;
  WorldOptions options;
  options.deadline = seconds(20);
  const auto body = [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const std::vector<ivy_comm*> groups = group_for_each(world, rank);
    if (rank == 0) {
      expect_timeouts(groups);
      *is_over = true;
    }
    EXPECT_TRUE(ivy::test::eventually([&] { return is_over->load(); }, seconds(15)));
    for (ivy_comm* const group : groups) {
      EXPECT_EQ(ivy_barrier(group, nullptr), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  };
  expect_ok(run_world(GetParam(), body, options));
}

// The rank stops before its first message, so no process accepts its connections.
TEST_P(MessageFailureTest, TimesOutNamingAStoppedRank) {
  WorldOptions options;
  options.deadline = seconds(20);
  options.stopped_rank = 1;
  const auto body = [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const std::vector<ivy_comm*> groups = group_for_each(world, rank);
    if (rank == 1) raise(SIGSTOP);
    if (rank == 0) expect_timeouts(groups);
  };
  expect_ok(run_world(GetParam(), body, options), 1);
}

TEST_P(MessageFailureTest, FailedWorkBreaksTheCommunicatorOnEveryRank) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    float values[6] = {};
    if (rank == 0) {
      ASSERT_EQ(ivy_send(world, values, 6, IVY_F32, 1, 0, nullptr), IVY_OK) << ivy_last_error();
    }
    if (rank == 1) {
      EXPECT_EQ(wait_for_work(call_with_timeout(seconds(10)),
                              [&](const ivy_call* call) {
                                return ivy_recv(world, values, 5, IVY_F32, 0, 0, nullptr, call);
                              }),
                IVY_ABORTED);
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_ABORTED);
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find("6 f32"), std::string::npos) << text;
    EXPECT_NE(text.find("5 f32"), std::string::npos) << text;
  }));
}

// ---- Leaving -----------------------------------------------------------------------------------

// Ranks that no other rank waits for have left before.
TEST(MessageLeaveTest, NamesARankThatLeftOnlyToRanksThatWaitForIt) {
  Shared<std::atomic<int>> gone;
  WorldOptions options;
  options.deadline = seconds(20);
  const auto body = [&](int rank) {
    {
      const World world;
      ASSERT_TRUE(world);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      if (rank == 2) {
        EXPECT_TRUE(ivy::test::eventually([&] { return *gone == 1; }, seconds(15)));
        const int number = 5;
        ASSERT_EQ(ivy_send(world, &number, 1, IVY_I32, 0, 0, nullptr), IVY_OK) << ivy_last_error();
      }
      if (rank == 0) {
        int got = 0;
        EXPECT_EQ(ivy_recv(world, &got, 1, IVY_I32, 2, 0, nullptr, nullptr), IVY_OK)
            << ivy_last_error();
        EXPECT_EQ(got, 5);
        EXPECT_EQ(ivy_recv(world, &got, 1, IVY_I32, 2, 0, nullptr, nullptr), IVY_UNAVAILABLE);
        EXPECT_EQ(last_failure().rank, 2) << ivy_last_error();
      }
    }
    if (rank == 1) *gone = 1;
  };
  expect_ok(run_world(one_host(3), body, options));
}

class MessageAllLeftTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MessageAllLeftTest,
                         ::testing::Values(one_host(2), one_host(4), host_each(2), host_each(4),
                                           Hosts{2, 1}, Hosts{2, 2}, Hosts{1, 2}),
                         name_of_world);

int receive_as(ivy_comm* comm, bool is_work, int from, int& got) {
  const auto start = [&](const ivy_call* call) {
    return ivy_recv(comm, &got, 1, IVY_I32, from, IVY_ANY_TAG, nullptr, call);
  };
  return is_work ? wait_for_work(call_with_timeout(milliseconds(0)), start) : start(nullptr);
}

// The ranks leave one after the other, and each but rank 2 sends its rank first. The first rank has
// left long before the last one sends.
struct Leaving {
  std::atomic<int> left{0};
  std::atomic<std::int64_t> last_left_ms{0};

  bool have(int ranks) {
    return ivy::test::eventually([&] { return left >= ranks; }, seconds(15));
  }
  void leave(World& world, int rank) {
    EXPECT_TRUE(have(rank - 1));
    std::this_thread::sleep_for(milliseconds(rank == 1 ? 30 : 250));
    if (rank != 2) {
      EXPECT_EQ(ivy_send(world, &rank, 1, IVY_I32, 0, rank, nullptr), IVY_OK) << ivy_last_error();
    }
    const int size = ivy_comm_size(world);
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    last_left_ms = monotonic_ms();
    ++left;
    EXPECT_TRUE(have(size));  // Its process is still running.
  }
};

// Sent messages are received first, by a receive that waits and by a later one. After that no rank
// can send, which is an error immediately and not at the timeout.
void expect_all_left(const Hosts& hosts, int from, bool is_late, const std::string& printed) {
  Shared<Leaving> leaving;
  WorldOptions options;
  options.deadline = seconds(20);
  const int size = rank_count(hosts);
  const auto body = [&](int rank) {
    World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank != 0) return leaving->leave(world, rank);
    EXPECT_TRUE(!is_late || leaving->have(size - 1));
    const bool is_work = is_late;
    int got = -1;
    for (int sender = 1; sender < size; ++sender) {
      if (sender == 2 || (from != IVY_ANY_SOURCE && sender != from)) continue;
      ASSERT_EQ(receive_as(world, is_work, from, got), IVY_OK) << ivy_last_error();
      EXPECT_EQ(got, sender);
    }
    const std::int64_t begun = monotonic_ms();
    EXPECT_EQ(receive_as(world, is_work, from, got), IVY_UNAVAILABLE);
    const std::int64_t ended = monotonic_ms();
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find(printed), std::string::npos) << text;
    EXPECT_EQ(last_failure().rank, from) << text;
    EXPECT_LT(ended - std::max<std::int64_t>(begun, leaving->last_left_ms),
              scaled_time(seconds(1)).count());
    leaving->left = size;
  };
  SCOPED_TRACE(is_late ? "late, as work" : "waiting");
  expect_ok(run_world(hosts, body, options));
}

TEST_P(MessageAllLeftTest, ReceiveFromAnyRankFailsOnceAllHaveLeft) {
  for (const bool is_late : {false, true}) {
    expect_all_left(GetParam(), IVY_ANY_SOURCE, is_late,
                    "every other rank of communicator world has left");
  }
}

// From the last rank: the error also breaks the communicator on ranks that have not left.
TEST_P(MessageAllLeftTest, ReceiveFromOneRankFailsOnceItHasLeft) {
  const int last = rank_count(GetParam()) - 1;
  for (const bool is_late : {false, true}) {
    expect_all_left(GetParam(), last, is_late, "rank " + std::to_string(last) + " (");
  }
}

class MessageGroupTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MessageGroupTest,
                         ::testing::Values(one_host(4), host_each(3), Hosts{2, 1}, Hosts{1, 2}),
                         name_of_world);

// In the group of the first and the last rank, the only other member has left; the world has
// others.
TEST_P(MessageGroupTest, WaitsOnlyForItsOwnRanks) {
  Shared<std::atomic<bool>> is_over;
  WorldOptions options;
  options.deadline = seconds(20);
  const int size = rank_count(GetParam());
  const auto body = [&](int rank) {
    World world;
    ASSERT_TRUE(world);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank % (size - 1) == 0 ? 0 : 1, rank, &group), IVY_OK)
        << ivy_last_error();
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    int got = -1;
    if (rank == 0) {
      const ivy_call call = call_with_timeout(scaled_time(seconds(5)));
      EXPECT_EQ(ivy_recv(group, &got, 1, IVY_I32, IVY_ANY_SOURCE, 0, nullptr, &call),
                IVY_UNAVAILABLE);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("every other rank of communicator world/"), std::string::npos) << text;
      const ivy_call soon = call_with_timeout(milliseconds(700));
      EXPECT_EQ(ivy_recv(world, &got, 1, IVY_I32, IVY_ANY_SOURCE, 0, nullptr, &soon),
                IVY_DEADLINE_EXCEEDED)
          << ivy_last_error();
      *is_over = true;
    } else if (rank != size - 1) {
      EXPECT_TRUE(ivy::test::eventually([&] { return is_over->load(); }, seconds(15)));
    }
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
  };
  expect_ok(run_world(GetParam(), body, options));
}

class MessageEndTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MessageEndTest, ::testing::Values(one_host(2), host_each(2)),
                         name_of_world);

// The sender does not wait for the receiver, and the message is available after the sender's
// process has exited.
TEST_P(MessageEndTest, MessageOutlivesItsSender) {
  Shared<std::atomic<pid_t>> sender;
  expect_ok(run_world(GetParam(), [&](int rank) {
    Bytes data(200'003, static_cast<std::uint8_t>(7));
    {
      const World world;
      ASSERT_TRUE(world);
      if (rank == 0) {
        ASSERT_EQ(ivy_send(world, data.data(), data.size(), IVY_U8, 1, 0, nullptr), IVY_OK)
            << ivy_last_error();
      } else {
        const auto has_gone = [&] { return *sender != 0 && kill(*sender, 0) != 0; };
        EXPECT_TRUE(ivy::test::eventually(has_gone, seconds(8)));
        Bytes received(data.size());
        EXPECT_EQ(ivy_recv(world, received.data(), data.size(), IVY_U8, 0, 0, nullptr, nullptr),
                  IVY_OK)
            << ivy_last_error();
        EXPECT_EQ(received, data);
      }
    }
    if (rank == 0) *sender = getpid();
  }));
}

// Finalize completes sends that are work, or reports that it could not.
TEST_P(MessageEndTest, FinalizeFinishesSends) {
  for (const bool is_received : {true, false}) {
    SCOPED_TRACE(is_received);
    Shared<std::atomic<bool>> has_ended;
    expect_ok(run_world(GetParam(), [&](int rank) {
      ivy_comm* world = nullptr;
      ivy_options options = {};
      options.struct_bytes = sizeof options;
      options.rank = options.world_size = -1;
      ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
      Bytes data(kLarge, static_cast<std::uint8_t>(rank));
      if (rank == 0) {
        ivy_work* work = nullptr;
        ivy_call call = call_for_work(&work);
        call.timeout_ms = is_received ? 60'000 : 100;
        ASSERT_EQ(ivy_send(world, data.data(), data.size(), IVY_U8, 1, 0, &call), IVY_OK);
        const int code = ivy_finalize(world);
        EXPECT_EQ(code, is_received ? IVY_OK : IVY_DEADLINE_EXCEEDED) << ivy_last_error();
        EXPECT_EQ(ivy_work_wait(work, -1), code);
        EXPECT_EQ(ivy_work_free(work), IVY_OK);
        *has_ended = true;
        return;
      }
      if (is_received) {
        EXPECT_EQ(ivy_recv(world, data.data(), data.size(), IVY_U8, 0, 0, nullptr, nullptr), IVY_OK)
            << ivy_last_error();
        EXPECT_EQ(data.back(), 0);
      } else {
        EXPECT_TRUE(ivy::test::eventually([&] { return has_ended->load(); }, seconds(20)));
      }
      EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
    }));
  }
}

// ---- Receives with a limit ----------------------------------------------------------------------

// A receive with a limit does not break the communicator, and waits for a message that has started
// to arrive.
TEST(MessageWithinTest, LeavesTheMessageForTheNextCallAfterATimeout) {
  for (const Hosts& hosts : {one_host(2), host_each(2)}) {
    expect_ok(run_world(hosts, [](int rank) {
      const World world;
      ASSERT_TRUE(world);
      Bytes data(kRingBytes * 5, 7);
      if (rank == 1) {
        std::uint8_t asked = 0;
        ASSERT_EQ(ivy_recv(world, &asked, 1, IVY_U8, 0, 1, nullptr, nullptr), IVY_OK);
        ASSERT_EQ(ivy_send(world, data.data(), data.size(), IVY_U8, 0, 2, nullptr), IVY_OK);
        return;
      }
      ivy_message message = {};
      message.struct_bytes = sizeof message;
      for (const std::int64_t at_most : {0, 20}) {
        ASSERT_EQ(ivy_recv_within(world, data.data(), data.size(), IVY_U8, IVY_ANY_SOURCE, 2,
                                  &message, at_most),
                  IVY_OK);
        EXPECT_EQ(message.source, -1);
      }
      EXPECT_EQ(ivy_recv_within(world, data.data(), 1, IVY_U8, 1, 2, nullptr, 0),
                IVY_INVALID_ARGUMENT);
      data[1] = data[data.size() - 1] = 0;
      ASSERT_EQ(ivy_send(world, data.data(), 1, IVY_U8, 1, 1, nullptr), IVY_OK);
      ASSERT_EQ(ivy_recv_within(world, data.data(), data.size(), IVY_U8, 1, 2, &message, -1),
                IVY_OK);
      EXPECT_EQ(message.source, 1);
      EXPECT_EQ(message.bytes, data.size());
      EXPECT_EQ(data[1], 7);
      EXPECT_EQ(data.back(), 7);
    }));
  }
}

// ---- A full ring --------------------------------------------------------------------------------

// If the ring is completely full, a long message is lent once, however often the sender checks for
// room.
TEST(MessageRingTest, LendsALongMessageThroughAFullRing) {
  constexpr std::size_t kSmallBytes = 32 - sizeof(MessageHeader);
  for (const std::size_t room : {0, 8, 32}) {
    expect_ok(run_world(one_host(2), [room](int rank) {
      const World world;
      ASSERT_TRUE(world);
      ivy_call soon = {};
      soon.struct_bytes = sizeof soon;
      soon.timeout_ms = scaled_time(seconds(10)).count() * 1000;
      constexpr std::size_t kMessages = kRingBytes / 32;
      // The last small message is shorter, so that `room` bytes remain after it.
      const std::size_t whole = kMessages - room / 32;
      const std::size_t cut = room % 32;
      const auto bytes_of = [&](std::size_t i) {
        return i == whole - 1 ? kSmallBytes - cut : kSmallBytes;
      };
      Bytes data(kMinLentBytes + 1, rank == 0 ? 7 : 0);
      if (rank == 0) {
        for (std::size_t i = 0; i < whole; ++i) {
          ASSERT_EQ(ivy_send(world, data.data(), bytes_of(i), IVY_U8, 1, 0, &soon), IVY_OK);
        }
        ASSERT_EQ(ivy_send(world, data.data(), data.size(), IVY_U8, 1, 0, &soon), IVY_OK)
            << ivy_last_error() << ", with room for " << room;
      } else {
        // The sender checks for room several times in between.
        std::this_thread::sleep_for(milliseconds(300));
        for (std::size_t i = 0; i < whole; ++i) {
          ASSERT_EQ(ivy_recv(world, data.data(), bytes_of(i), IVY_U8, 0, 0, nullptr, &soon),
                    IVY_OK);
        }
        ASSERT_EQ(ivy_recv(world, data.data(), data.size(), IVY_U8, 0, 0, nullptr, &soon), IVY_OK);
        EXPECT_EQ(data.back(), 7);
      }
      ASSERT_EQ(ivy_barrier(world, &soon), IVY_OK) << ivy_last_error();
    }));
  }
}

// ---- Processes that peers cannot read -----------------------------------------------------------

void drop_capabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  ASSERT_EQ(syscall(SYS_capset, &header, none), 0) << strerror(errno);
}

TEST(MessageReachTest, ExchangesMessagesBetweenProcessesThatCannotReadEachOther) {
  expect_ok(run_world(one_host(3), [](int rank) {
    drop_capabilities();
    ASSERT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
    const World world;
    ASSERT_TRUE(world);
    int got = -1;
    const int size = ivy_comm_size(world);
    ASSERT_EQ(ivy_sendrecv(world, &rank, 1, (rank + 1) % size, 0, &got, 1, (rank + 2) % size, 0,
                           IVY_I32, nullptr, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(got, (rank + 2) % size);
    // More than the ring holds: it is lent in place, and must then be copied through the ring.
    Bytes send(3 * kRingBytes, static_cast<std::uint8_t>(rank));
    Bytes received(send.size(), 99);
    ASSERT_EQ(ivy_sendrecv(world, send.data(), send.size(), (rank + 1) % size, 0, received.data(),
                           received.size(), (rank + 2) % size, 0, IVY_U8, nullptr, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(received, Bytes(send.size(), static_cast<std::uint8_t>((rank + 2) % size)));
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
