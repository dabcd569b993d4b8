// SPDX-License-Identifier: Apache-2.0
// Invalid arguments. Each is an error only of the calling rank, names the argument, touches no
// memory and leaves the communicator usable.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "comm/api/struct_growth.h"
#include "tests/comm/operations.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

using Counts = const std::size_t*;

struct WrongCall {
  const char* name;
  std::function<int(ivy_comm*)> call;
  const char* printed;  // The argument's text in the message.
};

constexpr std::size_t kHalf = std::size_t{1} << 63;

char bytes[64];
char others[64];
void* const in_place = const_cast<void*>(IVY_IN_PLACE);
const std::size_t two_each[] = {2, 2};
const std::size_t wrapping[] = {kHalf, kHalf};  // Their sum wraps around to 0.
const std::size_t far_away[] = {0, SIZE_MAX - 1};

// Each rank is the root of its own call: an invalid call must not reach its peers.
std::vector<WrongCall> wrong_reductions() {
  const auto all_reduce = [](const void* send, void* recv, std::size_t count) {
    return
        [=](ivy_comm* c) { return ivy_all_reduce(c, send, recv, count, IVY_U8, IVY_SUM, nullptr); };
  };
  const auto reduce = [](const void* send, void* recv, std::size_t count) {
    return [=](ivy_comm* c) {
      return ivy_reduce(c, send, recv, count, IVY_U8, IVY_SUM, ivy_comm_rank(c), nullptr);
    };
  };
  const auto scan = [](const void* send, void* recv, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_scan(c, send, recv, count, IVY_U8, IVY_SUM, nullptr); };
  };
  const auto scatter = [](const void* send, void* recv, std::size_t count) {
    return [=](ivy_comm* c) {
      return ivy_reduce_scatter(c, send, recv, count, IVY_U8, IVY_SUM, nullptr);
    };
  };
  const auto scatter_v = [](const void* send, void* recv, Counts counts, int dtype) {
    return [=](ivy_comm* c) {
      return ivy_reduce_scatter_v(c, send, recv, counts, dtype, IVY_SUM, nullptr);
    };
  };
  return {
      {"all_reduce", all_reduce(nullptr, bytes, 4), "send"},
      {"all_reduce", all_reduce(bytes, nullptr, 4), "recv"},
      {"all_reduce", all_reduce(bytes, in_place, 4), "recv"},
      {"all_reduce", all_reduce(IVY_IN_PLACE, nullptr, 4), "recv"},
      {"all_reduce", all_reduce(IVY_IN_PLACE, in_place, 4), "recv"},
      {"all_reduce", all_reduce(bytes, others, kHalf), "count"},
      {"reduce", reduce(nullptr, bytes, 4), "send"},
      {"reduce", reduce(bytes, nullptr, 4), "recv"},
      {"reduce", reduce(bytes, in_place, 4), "recv"},
      {"reduce", reduce(IVY_IN_PLACE, nullptr, 4), "recv"},
      {"reduce elsewhere",
       [](ivy_comm* c) {
         return ivy_reduce(c, nullptr, bytes, 4, IVY_U8, IVY_SUM, 1 - ivy_comm_rank(c), nullptr);
       },
       "send"},
      {"scan", scan(nullptr, bytes, 4), "send"},
      {"scan", scan(bytes, nullptr, 4), "recv"},
      {"scan", scan(bytes, in_place, 4), "recv"},
      {"exscan",
       [](ivy_comm* c) { return ivy_exscan(c, nullptr, bytes, 4, IVY_U8, IVY_SUM, nullptr); },
       "send"},
      {"reduce_scatter", scatter(nullptr, bytes, 4), "send"},
      {"reduce_scatter", scatter(bytes, nullptr, 4), "recv"},
      {"reduce_scatter", scatter(bytes, in_place, 4), "recv"},
      {"reduce_scatter", scatter(bytes, others, kHalf), "count"},
      {"reduce_scatter_v", scatter_v(nullptr, bytes, two_each, IVY_U8), "send"},
      {"reduce_scatter_v", scatter_v(bytes, nullptr, two_each, IVY_U8), "recv"},
      {"reduce_scatter_v", scatter_v(bytes, in_place, two_each, IVY_U8), "recv"},
      {"reduce_scatter_v", scatter_v(bytes, others, nullptr, IVY_U8), "counts"},
      {"reduce_scatter_v", scatter_v(bytes, others, wrapping, IVY_U8), "counts[0]"},
  };
}

std::vector<WrongCall> wrong_parts() {
  static const void* const both[] = {bytes, bytes + 8};
  static const void* const one[] = {bytes, nullptr};
  static void* const to_both[] = {others, others + 8};
  static void* const to_one[] = {others, nullptr};
  static void* const to_itself[] = {others, const_cast<void*>(IVY_IN_PLACE)};
  const auto parts = [](const void* const* send, void* const* recv, Counts counts) {
    return [=](ivy_comm* c) {
      return ivy_all_reduce_coalesced(c, 2, send, recv, counts, IVY_U8, IVY_SUM, nullptr);
    };
  };
  return {
      {"all_reduce_coalesced", parts(nullptr, to_both, two_each), "send"},
      {"all_reduce_coalesced", parts(both, nullptr, two_each), "recv"},
      {"all_reduce_coalesced", parts(both, to_both, nullptr), "counts"},
      {"all_reduce_coalesced", parts(one, to_both, two_each), "send[1]"},
      {"all_reduce_coalesced", parts(both, to_one, two_each), "recv[1]"},
      {"all_reduce_coalesced", parts(both, to_itself, two_each), "recv[1]"},
      {"all_reduce_coalesced", parts(both, to_both, wrapping), "counts[0]"},
  };
}

std::vector<WrongCall> wrong_moves() {
  const auto broadcast = [](void* buffer, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_broadcast(c, buffer, count, IVY_U8, 0, nullptr); };
  };
  const auto all_gather = [](const void* send, void* recv, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_all_gather(c, send, recv, count, IVY_U8, nullptr); };
  };
  const auto gather = [](const void* send, void* recv, int from_rank) {
    return [=](ivy_comm* c) {
      const int root = (ivy_comm_rank(c) + from_rank) % 2;
      return ivy_gather(c, send, recv, 4, IVY_U8, root, nullptr);
    };
  };
  const auto scatter = [](const void* send, void* recv, int from_rank) {
    return [=](ivy_comm* c) {
      const int root = (ivy_comm_rank(c) + from_rank) % 2;
      return ivy_scatter(c, send, recv, 4, IVY_U8, root, nullptr);
    };
  };
  const auto all_to_all = [](const void* send, void* recv, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_all_to_all(c, send, recv, count, IVY_U8, nullptr); };
  };
  return {
      {"broadcast", broadcast(nullptr, 4), "buffer"},
      {"broadcast", broadcast(in_place, 4), "buffer"},
      {"broadcast", broadcast(bytes, kHalf), "count"},
      {"all_gather", all_gather(nullptr, bytes, 4), "send"},
      {"all_gather", all_gather(bytes, nullptr, 4), "recv"},
      {"all_gather", all_gather(bytes, in_place, 4), "recv"},
      {"all_gather", all_gather(bytes, others, kHalf), "count"},
      {"gather", gather(nullptr, bytes, 0), "send"},
      {"gather", gather(bytes, nullptr, 0), "recv"},
      {"gather", gather(bytes, in_place, 0), "recv"},
      {"gather", gather(nullptr, bytes, 1), "send"},
      {"gather", gather(IVY_IN_PLACE, bytes, 1), "root"},
      {"scatter", scatter(nullptr, bytes, 0), "send"},
      {"scatter", scatter(bytes, nullptr, 0), "recv"},
      {"scatter", scatter(IVY_IN_PLACE, bytes, 0), "send"},
      {"scatter", scatter(bytes, nullptr, 1), "recv"},
      {"scatter", scatter(bytes, in_place, 1), "root"},
      {"all_to_all", all_to_all(nullptr, bytes, 4), "send"},
      {"all_to_all", all_to_all(bytes, nullptr, 4), "recv"},
      {"all_to_all", all_to_all(bytes, in_place, 4), "recv"},
      {"all_to_all", all_to_all(bytes, others, kHalf), "count"},
  };
}

std::vector<WrongCall> wrong_uneven_moves() {
  const auto all_gather = [](const void* send, void* recv, Counts counts, Counts begins) {
    return [=](ivy_comm* c) {
      return ivy_all_gather_v(c, send, recv, counts, begins, IVY_U8, nullptr);
    };
  };
  const auto gather = [](const void* send, void* recv, Counts counts, Counts begins) {
    return [=](ivy_comm* c) {
      return ivy_gather_v(c, send, 2, recv, counts, begins, IVY_U8, ivy_comm_rank(c), nullptr);
    };
  };
  const auto scatter = [](const void* send, void* recv, Counts counts, Counts begins) {
    return [=](ivy_comm* c) {
      return ivy_scatter_v(c, send, counts, begins, recv, 2, IVY_U8, ivy_comm_rank(c), nullptr);
    };
  };
  return {
      {"all_gather_v", all_gather(nullptr, bytes, two_each, nullptr), "send"},
      {"all_gather_v", all_gather(bytes, nullptr, two_each, nullptr), "recv"},
      {"all_gather_v", all_gather(bytes, in_place, two_each, nullptr), "recv"},
      {"all_gather_v", all_gather(IVY_IN_PLACE, nullptr, two_each, nullptr), "recv"},
      {"all_gather_v", all_gather(bytes, others, nullptr, nullptr), "counts"},
      {"all_gather_v", all_gather(bytes, nullptr, wrapping, nullptr), "counts[0]"},
      {"all_gather_v", all_gather(bytes, others, two_each, far_away), "displacements[1]"},
      {"gather_v", gather(nullptr, bytes, two_each, nullptr), "send"},
      {"gather_v", gather(bytes, nullptr, two_each, nullptr), "recv"},
      {"gather_v", gather(bytes, in_place, two_each, nullptr), "recv"},
      {"gather_v", gather(IVY_IN_PLACE, nullptr, two_each, nullptr), "recv"},
      {"gather_v", gather(bytes, others, nullptr, nullptr), "counts"},
      {"gather_v", gather(bytes, others, wrapping, nullptr), "counts[0]"},
      {"gather_v", gather(bytes, others, two_each, far_away), "displacements[1]"},
      {"scatter_v", scatter(nullptr, bytes, two_each, nullptr), "send"},
      {"scatter_v", scatter(IVY_IN_PLACE, bytes, two_each, nullptr), "send"},
      {"scatter_v", scatter(bytes, nullptr, two_each, nullptr), "recv"},
      {"scatter_v", scatter(nullptr, in_place, two_each, nullptr), "send"},
      {"scatter_v", scatter(bytes, others, nullptr, nullptr), "counts"},
      {"scatter_v", scatter(bytes, others, wrapping, nullptr), "counts[0]"},
      {"scatter_v", scatter(bytes, others, two_each, far_away), "displacements[1]"},
  };
}

std::vector<WrongCall> wrong_exchanges() {
  const auto exchange = [](const void* send, Counts sent, void* recv, Counts received) {
    return [=](ivy_comm* c) {
      return ivy_all_to_all_v(c, send, sent, nullptr, recv, received, nullptr, IVY_U8, nullptr);
    };
  };
  const auto displaced = [](Counts from, Counts to) {
    return [=](ivy_comm* c) {
      return ivy_all_to_all_v(c, bytes, two_each, from, others, two_each, to, IVY_U8, nullptr);
    };
  };
  return {
      {"all_to_all_v", exchange(nullptr, two_each, others, two_each), "send"},
      {"all_to_all_v", exchange(bytes, two_each, nullptr, two_each), "recv"},
      {"all_to_all_v", exchange(bytes, two_each, in_place, two_each), "recv"},
      {"all_to_all_v", exchange(IVY_IN_PLACE, two_each, others, two_each), "in place"},
      {"all_to_all_v", exchange(bytes, nullptr, others, two_each), "send_counts"},
      {"all_to_all_v", exchange(bytes, two_each, others, nullptr), "recv_counts"},
      {"all_to_all_v", exchange(bytes, wrapping, others, two_each), "send_counts[0]"},
      {"all_to_all_v", exchange(bytes, two_each, others, wrapping), "recv_counts[0]"},
      {"all_to_all_v", displaced(far_away, nullptr), "send_displacements[1]"},
      {"all_to_all_v", displaced(nullptr, far_away), "recv_displacements[1]"},
  };
}

std::vector<WrongCall> wrong_messages() {
  const auto send = [](const void* buffer, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_send(c, buffer, count, IVY_U8, 0, 0, nullptr); };
  };
  const auto recv = [](void* buffer, std::size_t count) {
    return [=](ivy_comm* c) { return ivy_recv(c, buffer, count, IVY_U8, 0, 0, nullptr, nullptr); };
  };
  const auto both = [](const void* from, void* to) {
    return [=](ivy_comm* c) {
      return ivy_sendrecv(c, from, 4, 0, 0, to, 4, 0, 0, IVY_U8, nullptr, nullptr);
    };
  };
  const auto tagged = [](int send_tag, int recv_tag) {
    return [=](ivy_comm* c) {
      return ivy_sendrecv(c, bytes, 4, 0, send_tag, others, 4, 0, recv_tag, IVY_U8, nullptr,
                          nullptr);
    };
  };
  return {
      {"send", send(nullptr, 4), "buffer"},
      {"send", send(IVY_IN_PLACE, 4), "buffer"},
      {"send", send(bytes, kHalf), "count"},
      {"recv", recv(nullptr, 4), "buffer"},
      {"recv", recv(in_place, 4), "buffer"},
      {"recv", recv(bytes, kHalf), "count"},
      {"sendrecv", both(nullptr, others), "send is NULL"},
      {"sendrecv", both(bytes, nullptr), "recv is NULL"},
      {"sendrecv", both(IVY_IN_PLACE, others), "send is IVY_IN_PLACE"},
      {"sendrecv", both(bytes, in_place), "recv is IVY_IN_PLACE"},
      {"sendrecv", tagged(-5, 0), "send_tag -5"},
      {"sendrecv", tagged(0, -5), "recv_tag -5"},
  };
}

void expect_rejected(ivy_comm* comm, const std::vector<WrongCall>& calls) {
  for (const WrongCall& wrong : calls) {
    SCOPED_TRACE(std::string(wrong.name) + ", wrong " + wrong.printed);
    // If the call were executed, it would wait for the other rank or write to invalid memory.
    ASSERT_EQ(wrong.call(comm), IVY_INVALID_ARGUMENT) << ivy_last_error();
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find(wrong.printed), std::string::npos) << text;
  }
}

constexpr std::vector<WrongCall> (*kWrongCalls[])() = {wrong_reductions, wrong_parts,
                                                       wrong_moves,      wrong_uneven_moves,
                                                       wrong_exchanges,  wrong_messages};

TEST(ArgumentsTest, ChecksEveryFunction) {
  std::set<std::string> names = {"barrier"};  // Takes no arguments to check.
  for (const auto calls : kWrongCalls)
    for (const WrongCall& wrong : calls()) names.insert(wrong.name);
  EXPECT_EQ(functions_missing_in(names), std::set<std::string>());
}

TEST(ArgumentsTest, RejectsInvalidArgumentsAndKeepsTheCommunicator) {
  expect_ok(run_world(one_host(2), [](int) {
    const World world(seconds(5));
    ASSERT_TRUE(world);
    for (const auto calls : kWrongCalls) {
      expect_rejected(world, calls());
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    int sum = 1;
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &sum, 1, IVY_I32, IVY_SUM, nullptr), IVY_OK);
    EXPECT_EQ(sum, 2);
  }));
}

// Rejected before anything is touched: the message is still available to the next receive.
TEST(ArgumentsTest, RejectsAMessageStructureWithoutItsSize) {
  for (const Hosts& hosts : {one_host(2), host_each(2)}) {
    expect_ok(run_world(hosts, [](int rank) {
      const World world(seconds(5));
      ASSERT_TRUE(world);
      const int other = 1 - rank;
      ASSERT_EQ(ivy_send(world, &rank, 1, IVY_I32, other, 3, nullptr), IVY_OK) << ivy_last_error();
      ivy_message message = {};  // struct_bytes is not set.
      ivy_work* work = nullptr;
      const ivy_call as_work = call_for_work(&work);
      int got = -1;
      const int sent = 9;
      for (const ivy_call* const call : {static_cast<const ivy_call*>(nullptr), &as_work}) {
        EXPECT_EQ(ivy_recv(world, &got, 1, IVY_I32, other, 3, &message, call),
                  IVY_INVALID_ARGUMENT);
        EXPECT_STREQ(ivy_last_error(),
                     "ivy_message.struct_bytes is not set to sizeof(ivy_message)");
        EXPECT_EQ(work, nullptr);
      }
      EXPECT_EQ(
          ivy_sendrecv(world, &sent, 1, other, 3, &got, 1, other, 3, IVY_I32, &message, nullptr),
          IVY_INVALID_ARGUMENT);
      EXPECT_EQ(got, -1);
      message.struct_bytes = sizeof message;
      ASSERT_EQ(ivy_recv(world, &got, 1, IVY_I32, other, IVY_ANY_TAG, &message, nullptr), IVY_OK)
          << ivy_last_error();
      EXPECT_EQ(got, other);
      EXPECT_EQ(message.bytes, sizeof got);
      // The rejected sendrecv has not sent anything either.
      const ivy_call soon = call_with_timeout(milliseconds(100));
      EXPECT_EQ(ivy_recv(world, &got, 1, IVY_I32, other, IVY_ANY_TAG, nullptr, &soon),
                IVY_DEADLINE_EXCEEDED);
    }));
    if (HasFailure()) return;
  }
}

TEST(ArgumentsTest, AllowsNullForEmptyBuffers) {
  expect_ok(run_world(one_host(2), [](int) {
    const World world(seconds(20));
    ASSERT_TRUE(world);
    const std::size_t none[] = {0, 0};
    const void* const from[] = {nullptr};
    void* const to[] = {nullptr};
    void* const null = nullptr;
    EXPECT_EQ(ivy_all_reduce(world, null, null, 0, IVY_F32, IVY_SUM, nullptr), IVY_OK);
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, null, 0, IVY_F32, IVY_SUM, nullptr), IVY_OK);
    EXPECT_EQ(ivy_all_reduce_coalesced(world, 1, from, to, none, IVY_F32, IVY_SUM, nullptr),
              IVY_OK);
    EXPECT_EQ(ivy_all_gather_v(world, null, null, none, nullptr, IVY_F32, nullptr), IVY_OK);
    EXPECT_EQ(ivy_reduce_scatter_v(world, null, null, none, IVY_F32, IVY_SUM, nullptr), IVY_OK);
    EXPECT_EQ(ivy_gather_v(world, null, 0, null, none, nullptr, IVY_F32, 0, nullptr), IVY_OK);
    EXPECT_EQ(ivy_scatter_v(world, null, none, nullptr, null, 0, IVY_F32, 0, nullptr), IVY_OK);
    EXPECT_EQ(ivy_all_to_all_v(world, null, none, nullptr, null, none, nullptr, IVY_F32, nullptr),
              IVY_OK);
  }));
}

// ---- Structures that grow -----------------------------------------------------------------------

// A structure of the header today and in a later version.
struct Now {
  std::size_t struct_bytes;
  std::int64_t first;
};
struct Later {
  std::size_t struct_bytes;
  std::int64_t first;
  std::int64_t second;
};

TEST(StructGrowthTest, ServesAnOlderStructure) {
  struct {
    Now known;
    std::int64_t beyond;
  } program = {{sizeof(Now), 5}, 77};
  Later& seen = reinterpret_cast<Later&>(program);
  Later own = {sizeof(Later), 0, -1};
  ASSERT_TRUE(take_fields(seen, sizeof(Now), own));
  EXPECT_EQ(own.first, 5);
  EXPECT_EQ(own.second, -1);
  ASSERT_TRUE(give_fields(Later{sizeof(Later), 6, 8}, sizeof(Now), seen));
  EXPECT_EQ(program.known.first, 6);
  EXPECT_EQ(program.known.struct_bytes, sizeof(Now));
  EXPECT_EQ(program.beyond, 77);
}

TEST(StructGrowthTest, ServesANewerStructure) {
  Later program = {sizeof(Later), 5, 7};
  Now& seen = reinterpret_cast<Now&>(program);
  Now own = {sizeof(Now), 0};
  ASSERT_TRUE(take_fields(seen, sizeof(Now), own));
  EXPECT_EQ(own.first, 5);
  ASSERT_TRUE(give_fields(Now{sizeof(Now), 6}, sizeof(Now), seen));
  EXPECT_EQ(program.first, 6);
  EXPECT_EQ(program.second, 7);
  EXPECT_EQ(program.struct_bytes, sizeof(Later));
}

// A program of the first version: its structures end where that version's did, with other data of
// the program after them. The sizes are literals, because the sizes that the library accepts must
// not change with the structures.
void use_the_first_versions_structures() {
  constexpr std::size_t kOptions = 32, kFailure = 136, kMessage = 24;
  ivy_options options = {};
  options.struct_bytes = kOptions;
  options.init_method = "self://";
  options.rank = options.world_size = -1;
  ivy_comm* world = nullptr;
  ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
  options.struct_bytes = kOptions - 1;
  ivy_comm* none = nullptr;
  EXPECT_EQ(ivy_init(&options, &none), IVY_INVALID_ARGUMENT);

  std::array<char, kFailure + 16> room;
  room.fill('c');
  auto* const failure = reinterpret_cast<ivy_failure*>(room.data());
  failure->struct_bytes = kFailure;
  EXPECT_EQ(ivy_last_failure(failure), IVY_OK);
  EXPECT_EQ(std::string(room.data() + kFailure, 16), std::string(16, 'c'));
  failure->struct_bytes = kFailure - 8;
  EXPECT_EQ(ivy_last_failure(failure), IVY_INVALID_ARGUMENT);

  const char sent = 's';
  char received = 0;
  ivy_work* work = nullptr;
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.work = &work;
  ASSERT_EQ(ivy_send(world, &sent, 1, IVY_U8, 0, 7, &call), IVY_OK) << ivy_last_error();
  std::array<char, kMessage + 16> message_room;
  message_room.fill('c');
  auto* const message = reinterpret_cast<ivy_message*>(message_room.data());
  message->struct_bytes = kMessage;
  ASSERT_EQ(ivy_recv(world, &received, 1, IVY_U8, 0, 7, message, nullptr), IVY_OK)
      << ivy_last_error();
  EXPECT_EQ(message->bytes, 1u);
  EXPECT_EQ(std::string(message_room.data() + kMessage, 16), std::string(16, 'c'));
  EXPECT_EQ(ivy_work_wait(work, IVY_FOREVER), IVY_OK);
  ivy_work_free(work);
  EXPECT_EQ(ivy_finalize(world), IVY_OK);
}

TEST(StructGrowthTest, ServesStructuresOfTheFirstVersion) {
  expect_ok(run_world(one_host(1), [](int) { use_the_first_versions_structures(); }));
}

TEST(StructGrowthTest, RejectsAStructureWithoutItsSize) {
  Now program = {};
  Now own = {};
  EXPECT_FALSE(take_fields(program, sizeof(Now), own));
  EXPECT_FALSE(give_fields(own, sizeof(Now), program));
}

}  // namespace
}  // namespace ivy::comm::test
