// SPDX-License-Identifier: Apache-2.0
// Notification through a descriptor when a work ends, and the store's calls of the C interface:
// binary values, atomic calls, queues, and error codes for missing keys.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

struct Pipe {
  std::array<int, 2> ends = {-1, -1};
  Pipe() { EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0); }
  ~Pipe() {
    for (const int end : ends) close(end);
  }
  // Returns the next token within the limit, or 0.
  std::uint64_t next(milliseconds limit) const {
    pollfd wanted = {ends[0], POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(scaled_time(limit).count())) <= 0) return 0;
    std::uint64_t token = 0;
    return read(ends[0], &token, sizeof token) == sizeof token ? token : 0;
  }
};

ivy_call async(ivy_work** work) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.work = work;
  return call;
}

TEST(NoticeTest, WritesTheTokenWhenTheWorkIsDone) {
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const Pipe pipe;
    ivy_work* work = nullptr;
    const ivy_call call = async(&work);
    if (rank == 0) {
      ASSERT_EQ(ivy_barrier(world, &call), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_work_notify(work, pipe.ends[1], 7), IVY_OK) << ivy_last_error();
      EXPECT_EQ(pipe.next(milliseconds(20)), 0U) << "the other rank has not arrived";
      ASSERT_EQ(ivy_store_set(world, "come", "", 0), IVY_OK) << ivy_last_error();
      EXPECT_EQ(pipe.next(seconds(20)), 7U);
      EXPECT_EQ(ivy_work_notify(work, pipe.ends[1], 8), IVY_OK);
      EXPECT_EQ(pipe.next(seconds(20)), 8U);
    } else {
      const char* const keys[] = {"come"};
      ASSERT_EQ(ivy_store_wait(world, keys, 1, IVY_FOREVER), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_barrier(world, &call), IVY_OK) << ivy_last_error();
    }
    EXPECT_EQ(ivy_work_free(work), IVY_OK);
  }));
}

TEST(NoticeTest, NotifiesOnFailureAndNeverBlocksOnAFullPipe) {
  expect_ok(run_world(one_host(2), [&](int rank) {
    World world;
    ASSERT_TRUE(world);
    const Pipe pipe;
    const Pipe full;
    const std::array<char, 4096> page = {};
    while (write(full.ends[1], page.data(), page.size()) > 0) {
    }
    ivy_work* work = nullptr;
    const ivy_call call = async(&work);
    if (rank == 0) {
      ASSERT_EQ(ivy_barrier(world, &call), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_work_notify(work, full.ends[1], 1), IVY_OK);
      ASSERT_EQ(ivy_work_notify(work, pipe.ends[1], 2), IVY_OK);
      ASSERT_EQ(ivy_comm_abort(world, "enough"), IVY_OK);
      EXPECT_EQ(pipe.next(seconds(20)), 2U);
      EXPECT_EQ(ivy_work_wait(work, IVY_FOREVER), IVY_CANCELLED);
      EXPECT_EQ(ivy_work_free(work), IVY_OK);
      EXPECT_EQ(ivy_work_notify(nullptr, pipe.ends[1], 1), IVY_INVALID_ARGUMENT);
    }
    world.finalize();
  }));
}

// A value that the library allocated.
struct Taken {
  ivy_bytes bytes = {};
  ~Taken() { ivy_bytes_free(bytes.data); }
  std::string_view text() const { return {static_cast<const char*>(bytes.data), bytes.bytes}; }
};

ivy_bytes of(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

void swap_values(ivy_comm* world) {
  const ivy_bytes expected = of("1");
  ivy_swap swap = {nullptr, of("1"), -1, {}};
  ASSERT_EQ(ivy_store_compare_set(world, "swapped", &swap), IVY_OK) << ivy_last_error();
  EXPECT_EQ(swap.stored, 1);
  ivy_bytes_free(swap.current.data);
  swap = {&expected, of({"\0two", 4}), -1, {}};
  ASSERT_EQ(ivy_store_compare_set(world, "swapped", &swap), IVY_OK) << ivy_last_error();
  EXPECT_EQ(swap.stored, 1);
  ivy_bytes_free(swap.current.data);
  ASSERT_EQ(ivy_store_compare_set(world, "swapped", &swap), IVY_OK) << ivy_last_error();
  EXPECT_EQ(swap.stored, 0);
  EXPECT_EQ(swap.current.bytes, 4U);
  ivy_bytes_free(swap.current.data);
  ASSERT_EQ(ivy_store_compare_set(world, "missing", &swap), IVY_OK) << ivy_last_error();
  EXPECT_EQ(swap.stored, 0);
  EXPECT_EQ(swap.current.data, nullptr);
}

void set_and_get_many(ivy_comm* world) {
  const char* const keys[] = {"many/a", "many/b", "many/none"};
  const ivy_bytes values[] = {of({"\0\0", 2}), {nullptr, 0}};
  ASSERT_EQ(ivy_store_multi_set(world, keys, 2, values), IVY_OK) << ivy_last_error();
  std::array<Taken, 2> found;
  std::array<ivy_bytes, 2> given = {};
  ASSERT_EQ(ivy_store_multi_get(world, keys, 2, given.data()), IVY_OK) << ivy_last_error();
  for (std::size_t i = 0; i < 2; ++i) found[i].bytes = given[i];
  EXPECT_EQ(found[0].text(), std::string_view("\0\0", 2));
  EXPECT_EQ(found[1].text(), "");
  std::array<ivy_bytes, 3> none = {};
  EXPECT_EQ(ivy_store_multi_get(world, keys, 3, none.data()), IVY_NOT_FOUND);
  EXPECT_STREQ(ivy_code_name(IVY_NOT_FOUND), "NotFound");
  EXPECT_NE(std::string(ivy_last_error()).find("many/none"), std::string::npos);
  int all_exist = -1;
  EXPECT_EQ(ivy_store_check(world, keys, 2, &all_exist), IVY_OK);
  EXPECT_EQ(all_exist, 1);
  EXPECT_EQ(ivy_store_check(world, keys, 3, &all_exist), IVY_OK);
  EXPECT_EQ(all_exist, 0);
  EXPECT_EQ(ivy_store_wait(world, keys, 3, 1), IVY_DEADLINE_EXCEEDED);
  EXPECT_EQ(ivy_store_wait(world, nullptr, 3, 1), IVY_INVALID_ARGUMENT);
  Taken names;
  ASSERT_EQ(ivy_store_list(world, "many/", &names.bytes), IVY_OK) << ivy_last_error();
  EXPECT_EQ(names.text(), std::string_view("many/a\0many/b\0", 14));
  std::uint64_t count = 0;
  EXPECT_EQ(ivy_store_count(world, "many/", &count), IVY_OK);
  EXPECT_EQ(count, 2U);
}

void append_and_queue(ivy_comm* world) {
  std::uint64_t length = 0;
  EXPECT_EQ(ivy_store_append(world, "grown", of("ab"), &length), IVY_OK);
  EXPECT_EQ(ivy_store_append(world, "grown", of("c"), &length), IVY_OK);
  EXPECT_EQ(length, 3U);
  EXPECT_EQ(ivy_store_push(world, "queue", of("first"), &length), IVY_OK);
  EXPECT_EQ(ivy_store_push(world, "queue", of("second"), nullptr), IVY_OK);
  EXPECT_EQ(ivy_store_queue_length(world, "queue", &length), IVY_OK);
  EXPECT_EQ(length, 2U);
  for (const char* const text : {"first", "second"}) {
    Taken value;
    ASSERT_EQ(ivy_store_pop(world, "queue", 1000, &value.bytes), IVY_OK) << ivy_last_error();
    EXPECT_EQ(value.text(), text);
  }
  Taken nothing;
  EXPECT_EQ(ivy_store_pop(world, "queue", 1, &nothing.bytes), IVY_DEADLINE_EXCEEDED);
  EXPECT_EQ(ivy_store_push(world, "queue", {nullptr, 1}, &length), IVY_INVALID_ARGUMENT);
  EXPECT_EQ(ivy_store_pop(world, nullptr, 1, &nothing.bytes), IVY_INVALID_ARGUMENT);
}

TEST(StoreCallsTest, EveryCallMatchesItsDocumentation) {
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 0) {
      swap_values(world);
      set_and_get_many(world);
      append_and_queue(world);
    }
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
