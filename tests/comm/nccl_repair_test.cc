// SPDX-License-Identifier: Apache-2.0
// After a death, the survivors shrink the broken world's NCCL communicator (IVY_NCCL_SHRINK) if the
// library supports that. With the test doubles.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/comm/device.h"
#include "tests/comm/nccl_doubles.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

struct Expected {
  int revokes = 0;
  int shrinks = 0;
  int inits = 2;   // Including the first world's.
  int aborts = 1;  // Counted after the survivors have computed again.
};

struct Case {
  const char* name;
  std::string nccl;
  const char* wanted;      // IVY_NCCL_SHRINK.
  const char* scripts[2];  // For ranks 0 and 2, after the world was created.
  Expected expected;
};

void survive(int rank, const Case& one, std::atomic<int>& ready) {
  use_doubles(one.nccl);
  setenv("IVY_NCCL_SHRINK", one.wanted, 1);
  Device device(kCuda, rank);
  World world;
  if (!world) return;
  all_reduce_ones(world, device, 3);
  setenv("NCCL_DOUBLE", one.scripts[rank == 0 ? 0 : 1], 1);
  for (++ready; ready < 3;) std::this_thread::sleep_for(milliseconds(1));
  if (rank == 1) kill(getpid(), SIGKILL);
  void* memory = nullptr;
  ASSERT_EQ(ivy_mem_alloc_device(world, rank, 4000, &memory), IVY_OK) << ivy_last_error();
  ivy_call how = call_with_factor(1);
  how.flags = IVY_ENQUEUE;
  int code = IVY_OK;
  while (code == IVY_OK) {
    code = ivy_all_reduce(world, IVY_IN_PLACE, memory, 1000, IVY_F32, IVY_SUM, &how);
  }
  EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
  EXPECT_EQ(device.synchronize(nullptr), 0) << "the stream is not blocked";
  EXPECT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
  all_reduce_ones(world, device, 2);
  ivy_comm* group = nullptr;
  EXPECT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
  all_reduce_ones(group, device, 2);
  EXPECT_EQ(calls_of("ncclCommShrink"), one.expected.shrinks);
  EXPECT_EQ(calls_of("ncclCommInitRankConfig"), one.expected.inits);
  EXPECT_EQ(calls_of("ncclCommAbort"), one.expected.aborts);
  EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, memory, 1000, IVY_F32, IVY_SUM, &how), IVY_OK)
      << ivy_last_error();
  EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
  EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
  EXPECT_EQ(calls_of("leaked"), 0);
  EXPECT_EQ(calls_of("ncclCommAbort"), one.expected.aborts);
}

TEST(NcclRepairTest, SurvivorsShrinkTheCommunicatorIfNcclSupportsIt) {
  const std::string old = kDoubles + "/libnccl_double_2_14.so";
  const Case cases[] = {
      {"all ranks", kNccl, "1", {"", ""}, {1, 1, 1, 1}},
      {"not requested", kNccl, "0", {"", ""}, {}},
      {"an older library", old, "1", {"", ""}, {0, 0, 0, 0}},
      // If one rank cannot shrink, none does.
      {"one cannot", kNccl, "1", {"fail_revoke", ""}, {}},
      {"one keeps its error", kNccl, "1", {"", "keep_error"}, {}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const Shared<std::atomic<int>> ready;
    expect_ok(run_world(one_host(3), [&](int rank) { survive(rank, one, *ready); }), 1);
  }
}

TEST(NcclRepairTest, ARevokeThatNeverReturnsTaintsTheProcess) {
  expect_ok(run_world(one_host(2),
                      [](int rank) {
                        use_doubles();
                        setenv("IVY_NCCL_SHRINK", "1", 1);
                        Device device(kCuda, rank);
                        World world;
                        if (!world) return;
                        all_reduce_ones(world, device, 2);
                        setenv("NCCL_DOUBLE", "hang_revoke", 1);
                        if (rank == 1) kill(getpid(), SIGKILL);
                        int code = IVY_OK;
                        while (code == IVY_OK) code = ivy_barrier(world, nullptr);
                        EXPECT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
                        EXPECT_NE(ivy_prepare_device(world, rank, nullptr), IVY_OK);
                        EXPECT_NE(std::string(ivy_last_error())
                                      .find("ncclCommRevoke did not return within 5 s: exit this"),
                                  std::string::npos)
                            << ivy_last_error();
                      }),
            1);
}

}  // namespace
}  // namespace ivy::comm::test
