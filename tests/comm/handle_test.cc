// SPDX-License-Identifier: Apache-2.0
// Handles of freed communicators: using one is an error and never touches memory of another object.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

ivy_comm* join() {
  ivy_options options = {};
  options.struct_bytes = sizeof options;
  options.rank = options.world_size = -1;
  ivy_comm* world = nullptr;
  EXPECT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
  return world;
}

ivy_comm* group_of(ivy_comm* comm) {
  ivy_comm* group = nullptr;
  EXPECT_EQ(ivy_comm_split(comm, 0, 0, &group), IVY_OK) << ivy_last_error();
  return group;
}

int barrier(ivy_comm* comm) { return ivy_barrier(comm, nullptr); }

using Call = std::pair<const char*, std::function<int(ivy_comm*)>>;

std::vector<Call> calls() {
  static float value = 1;
  static ivy_comm* made = nullptr;
  static void* memory = nullptr;
  return {
      {"barrier", barrier},
      {"all_reduce",
       [](ivy_comm* comm) {
         return ivy_all_reduce(comm, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_SUM, nullptr);
       }},
      {"send", [](ivy_comm* comm) { return ivy_send(comm, &value, 1, IVY_F32, 0, 0, nullptr); }},
      {"split", [](ivy_comm* comm) { return ivy_comm_split(comm, 0, 0, &made); }},
      {"mem_alloc", [](ivy_comm* comm) { return ivy_mem_alloc(comm, 1, &memory); }},
      {"store_set", [](ivy_comm* comm) { return ivy_store_set(comm, "key", "x", 1); }},
      {"prepare_device", [](ivy_comm* comm) { return ivy_prepare_device(comm, -1, nullptr); }},
      {"abort", [](ivy_comm* comm) { return ivy_comm_abort(comm, "late"); }},
      {"free", [](ivy_comm* comm) { return ivy_comm_free(comm); }},
      {"finalize", [](ivy_comm* comm) { return ivy_finalize(comm); }},
  };
}

void expect_freed(ivy_comm* comm) {
  for (const auto& [name, call] : calls()) {
    EXPECT_EQ(call(comm), IVY_FAILED_PRECONDITION) << name;
    EXPECT_NE(std::string(ivy_last_error()).find("freed, or its world was finalized"),
              std::string::npos)
        << name << ": " << ivy_last_error();
  }
  EXPECT_EQ(ivy_comm_rank(comm), -1);
  EXPECT_EQ(ivy_comm_size(comm), -1);
  EXPECT_EQ(ivy_comm_local_rank(comm), -1);
  EXPECT_EQ(ivy_comm_local_size(comm), -1);
  EXPECT_EQ(ivy_comm_node_rank(comm), -1);
  EXPECT_EQ(ivy_comm_node_count(comm), -1);
  EXPECT_EQ(ivy_comm_world_rank(comm, 0), -1);
  EXPECT_STREQ(ivy_comm_name(comm), "");
  EXPECT_STREQ(ivy_comm_source(comm), "");
}

TEST(HandleTest, RejectsAFinalizedWorldAndItsGroups) {
  expect_ok(run_world(one_host(2), [](int) {
    ivy_comm* const world = join();
    ivy_comm* const group = group_of(world);
    ivy_comm* const inner = group_of(group);
    ASSERT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
    for (ivy_comm* const comm : {world, group, inner}) expect_freed(comm);
  }));
}

TEST(HandleTest, DoesNotConfuseALaterWorldWithTheFirst) {
  expect_ok(run_world(one_host(2), [](int) {
    ivy_comm* const first = join();
    ivy_comm* const group = group_of(first);
    ASSERT_EQ(ivy_finalize(first), IVY_OK) << ivy_last_error();
    ivy_comm* const second = join();
    ivy_comm* const other = group_of(second);
    for (ivy_comm* const comm : {first, group}) expect_freed(comm);
    EXPECT_EQ(barrier(other), IVY_OK) << ivy_last_error();
    EXPECT_EQ(barrier(second), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_finalize(second), IVY_OK) << ivy_last_error();
  }));
}

TEST(HandleTest, AGroupCannotBeFreedTwice) {
  expect_ok(run_world(one_host(2), [](int) {
    ivy_comm* const world = join();
    ivy_comm* const group = group_of(world);
    EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
    ivy_comm* const next = group_of(world);  // May reuse the memory of the first.
    expect_freed(group);
    EXPECT_EQ(barrier(next), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
  }));
}

TEST(HandleTest, FreesAGroupOnceForSeveralThreads) {
  expect_ok(run_world(one_host(2), [](int) {
    ivy_comm* const world = join();
    for (int turn = 0; turn < 50; ++turn) {
      ivy_comm* const group = group_of(world);
      std::atomic<int> freed{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] { freed += ivy_comm_free(group) == IVY_OK ? 1 : 0; });
      }
      for (std::thread& thread : threads) thread.join();
      ASSERT_EQ(freed, 1);
    }
    EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
  }));
}

// An unfinished operation breaks the group on every rank, as the header documents.
TEST(HandleTest, FreeingAGroupDuringAnOperationBreaksItOnEveryRank) {
  Shared<std::atomic<bool>> is_freed;
  expect_ok(run_world(one_host(2), [&](int rank) {
    ivy_comm* const world = join();
    ivy_comm* const group = group_of(world);
    if (rank == 0) {
      ivy_work* work = nullptr;
      const ivy_call call = call_for_work(&work);
      ASSERT_EQ(ivy_barrier(group, &call), IVY_OK) << ivy_last_error();
      EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
      EXPECT_EQ(ivy_work_wait(work, IVY_FOREVER), IVY_CANCELLED);
      EXPECT_EQ(ivy_work_free(work), IVY_OK);
      *is_freed = true;
    } else {
      EXPECT_TRUE(ivy::test::eventually([&] { return is_freed->load(); }, seconds(20)));
      EXPECT_EQ(barrier(group), IVY_CANCELLED) << ivy_last_error();
    }
    EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
  }));
}

// A program that makes a group in every step does not use more and more memory.
TEST(HandleTest, ReusesTheMemoryOfManyGroups) {
  expect_ok(run_world(one_host(1), [](int) {
    ivy_comm* const world = join();
    std::vector<ivy_comm*> seen;
    for (int turn = 0; turn < 20'000; ++turn) {
      ivy_comm* const group = group_of(world);
      ASSERT_EQ(barrier(group), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
      seen.push_back(group);
    }
    EXPECT_NE(seen[0], seen[1]);  // The address is not reused immediately.
    std::sort(seen.begin(), seen.end());
    EXPECT_LT(std::unique(seen.begin(), seen.end()) - seen.begin(), 10'000);
    EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
