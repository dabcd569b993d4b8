// SPDX-License-Identifier: Apache-2.0
// NCCL's part of libivycomm on a real GPU. Without a GPU, every test is skipped with the reason.
// Ranks that share a GPU take turns on it, so these tests check results, not speed.
//
// CUDA is never started in the test's own process: a forked child could not use it.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "comm/nccl/abi.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/library.h"
#include "tests/comm/device.h"
#include "tests/comm/device_operations.h"
#include "tests/comm/gpu_worlds.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

TEST_F(GpuTest, RunsEveryCollectiveInAWorldOfOne) {
  expect_ok(run_world(
      one_host(1),
      [](int) {
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(120));
        if (!world) return;
        const ivy_call how = call_with_factor(2);
        for (const std::size_t count : {1, 35, 100'003}) {
          for (const DeviceCase& one : device_cases(count)) {
            compare_with_host(world, device, one, &how);
          }
          for (const DeviceCase& one : average_cases(count)) {
            compare_with_host(world, device, one, &how);
          }
        }
      },
      long_timeout()));
}

TEST_P(SharedGpuTest, TwoRanksProduceTheResultsOfTheHost) {
  for (const bool is_enqueued : {false, true}) {
    const std::vector<RankEnd> ends = run_world(
        one_host(2),
        [&](int rank) {
          share_gpu(rank, GetParam());
          Device device(kDriver, 0);
          ASSERT_TRUE(device.is_available());
          World world(seconds(120));
          if (!world) return;
          ivy_call how = call_with_factor(rank + 1);
          if (is_enqueued) {
            how.flags = IVY_ENQUEUE;
            how.stream = device.make_stream();
          }
          for (const DeviceCase& one : device_cases(35)) {
            compare_with_host(world, device, one, &how);
          }
          for (const DeviceCase& one : average_cases(35)) {
            compare_with_host(world, device, one, &how);
          }
          ivy_comm* group = nullptr;
          ASSERT_EQ(ivy_comm_split(world, 0, -rank, &group), IVY_OK) << ivy_last_error();
          compare_with_host(group, device, {IVY_F32, IVY_SUM, 1000}, &how);
        },
        long_timeout());
    expect_ok(ends);
    std::printf("%s", ends[0].output.c_str());
  }
}

struct Board {
  std::atomic<std::int64_t> died_ms{0};
};

void run_until_killed(int rank, Way way, Board& board) {
  share_gpu(rank, way);
  Device device(kDriver, 0);
  ASSERT_TRUE(device.is_available());
  World world(seconds(120));
  if (!world) return;
  const DeviceArray on(device, std::vector<char>(64 << 20));
  ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
  std::thread killer;
  if (rank == 1) {
    killer = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(300));
      board.died_ms = monotonic_ms();
      kill(getpid(), SIGKILL);
    });
  }
  int code = IVY_OK;
  while (code == IVY_OK) {
    code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 16 << 20, IVY_F32, IVY_SUM, nullptr);
  }
  EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
  EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
  std::printf("figure: a killed peer is told after %lld ms (%s)\n",
              static_cast<long long>(monotonic_ms() - board.died_ms),
              way == Way::kMultiRank ? "NCCL_MULTI_RANK_GPU_ENABLE" : "NCCL_HOSTID");
  EXPECT_EQ(device.synchronize(nullptr), 0);
}

TEST_P(SharedGpuTest, NamesAKilledRankAndFreesTheGpu) {
  const Shared<Board> board;
  const std::vector<RankEnd> ends = run_world(
      one_host(2), [&](int rank) { run_until_killed(rank, GetParam(), *board); }, long_timeout());
  expect_ok(ends, 1);
  std::printf("%s", ends[0].output.c_str());
}

TEST_P(SharedGpuTest, AnAbortEndsAnOperationThatNoRankAnswers) {
  expect_ok(run_world(
      one_host(2),
      [](int rank) {
        share_gpu(rank, GetParam());
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const DeviceArray on(device, std::vector<char>(64 << 20));
        std::thread other;
        if (rank == 0) {
          other = std::thread([&] {
            std::this_thread::sleep_for(milliseconds(300));
            ivy_comm_abort(world, "enough");
          });
        }
        int code = IVY_OK;
        while (code == IVY_OK) {
          code =
              ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 16 << 20, IVY_F32, IVY_SUM, nullptr);
        }
        EXPECT_EQ(code, IVY_CANCELLED) << ivy_last_error();
        if (other.joinable()) other.join();
        EXPECT_EQ(device.synchronize(nullptr), 0);
      },
      long_timeout()));
}

// A rank that does not call the operation of the other. NCCL itself would hang forever.
TEST_P(SharedGpuTest, NamesARankThatHasNotCalled) {
  const Shared<Board> board;
  expect_ok(run_world(
      one_host(2),
      [&](int rank) {
        share_gpu(rank, GetParam());
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const DeviceArray on(device, std::vector<char>(4096));
        ivy_call how = call_with_factor(1);
        how.timeout_ms = 4'000;
        how.flags = IVY_ENQUEUE;
        const auto all_reduce = [&] {
          return ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1024, IVY_F32, IVY_SUM, &how);
        };
        for (int i = 0; i < 3; ++i) ASSERT_EQ(all_reduce(), IVY_OK) << ivy_last_error();
        if (rank == 1) {
          while (board->died_ms == 0) std::this_thread::sleep_for(milliseconds(5));
          return;
        }
        std::this_thread::sleep_for(milliseconds(1'500));
        how.flags = 0;
        EXPECT_EQ(all_reduce(), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
        std::printf("figure: late: %s\n", ivy_last_error());
        EXPECT_NE(std::string(ivy_last_error()).find("rank 1 has called 3 operations"),
                  std::string::npos);
        board->died_ms = monotonic_ms();
        EXPECT_EQ(device.synchronize(nullptr), 0);
      },
      long_timeout()));
}

// Types of equal size, whose difference NCCL does not notice, and sizes that make it hang.
TEST_P(SharedGpuTest, ReportsADifferenceWithBothSides) {
  for (const bool hangs : {false, true}) {
    expect_ok(run_world(
        one_host(2),
        [&](int rank) {
          share_gpu(rank, GetParam());
          Device device(kDriver, 0);
          ASSERT_TRUE(device.is_available());
          World world(seconds(60));
          if (!world) return;
          ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
          const DeviceArray on(device, std::vector<char>(64 << 20));
          ivy_call how = call_with_factor(1);
          how.flags = IVY_ENQUEUE;
          how.stream = device.make_stream();
          std::size_t count = 1024;
          if (hangs && rank == 1) count = 16 << 20;
          const int dtype = !hangs && rank == 1 ? IVY_I32 : IVY_F32;
          const auto began = monotonic_ms();
          int code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), count, dtype, IVY_SUM, &how);
          while (code == IVY_OK && monotonic_ms() - began < 20'000) {
            std::this_thread::sleep_for(milliseconds(10));
            code = ivy_barrier(world, nullptr);
          }
          EXPECT_EQ(code, IVY_ABORTED) << ivy_last_error();
          const std::string text = ivy_last_error();
          EXPECT_NE(text.find("rank 0 calls all_reduce(sum) of 1024 f32"), std::string::npos)
              << text;
          std::printf("figure: a mismatch is told after %lld ms\n",
                      static_cast<long long>(monotonic_ms() - began));
          EXPECT_EQ(device.synchronize(how.stream), 0);
        },
        long_timeout()));
  }
}

// Registers memory with NCCL in the first operation. Freeing the memory waits and deregisters it.
TEST_P(SharedGpuTest, RegistersLibraryMemoryAndFreesItInFlight) {
  const std::vector<RankEnd> ends = run_world(
      one_host(2),
      [](int rank) {
        share_gpu(rank, GetParam());
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(120));
        if (!world) return;
        constexpr std::size_t kCount = 4 << 20;
        const std::vector<float> ones(kCount, 1.0F);
        ivy_call how = call_with_factor(1);
        how.flags = IVY_ENQUEUE;
        how.stream = device.make_stream();
        for (int round = 0; round < 3; ++round) {
          void* memory = nullptr;
          ASSERT_EQ(ivy_mem_alloc_device(world, 0, kCount * sizeof(float), &memory), IVY_OK)
              << ivy_last_error();
          device.write(memory, ones.data(), kCount * sizeof(float));
          if (round == 1) {
            ASSERT_EQ(ivy_mem_window(world, memory, nullptr), IVY_OK) << ivy_last_error();
          }
          ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, memory, kCount, IVY_F32, IVY_SUM, &how),
                    IVY_OK)
              << ivy_last_error();
          if (round < 2) {
            ASSERT_EQ(device.synchronize(how.stream), 0);
            std::vector<float> sums(kCount);
            device.read(sums.data(), memory, kCount * sizeof(float));
            EXPECT_EQ(sums, std::vector<float>(kCount, 2.0F));
          }
          EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
        }
        EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
      },
      long_timeout());
  expect_ok(ends);
}

// Uses ncclCommRevoke and ncclCommShrink if the library has them (2.29), otherwise a new
// communicator.
TEST_P(SharedGpuTest, SurvivorsShrinkTheirCommunicator) {
  const std::vector<RankEnd> ends = run_world(
      one_host(3),
      [](int rank) {
        share_gpu(rank, GetParam());
        setenv("IVY_NCCL_SHRINK", "1", 1);
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(60));
        if (!world) return;
        const DeviceArray on(device, std::vector<char>(4096));
        const auto all_reduce = [&] {
          return ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1024, IVY_F32, IVY_SUM, nullptr);
        };
        ASSERT_EQ(all_reduce(), IVY_OK) << ivy_last_error();
        if (rank == 1) kill(getpid(), SIGKILL);
        int code = IVY_OK;
        while (code == IVY_OK) code = all_reduce();
        EXPECT_EQ(device.synchronize(nullptr), 0);
        const auto began = monotonic_ms();
        ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
        ASSERT_EQ(all_reduce(), IVY_OK) << ivy_last_error();
        std::printf("figure: the first all_reduce of a shrunk world of 2: %lld ms\n",
                    static_cast<long long>(monotonic_ms() - began));
        EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
      },
      long_timeout());
  expect_ok(ends, 1);
  std::printf("%s", ends[0].output.c_str());
}

TEST_F(GpuTest, ReplaysAGraphAThousandTimes) {
  const std::vector<RankEnd> ends = run_world(
      one_host(1),
      [](int) {
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        const Graphs graphs(device);
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const std::vector<char> given(4096, 3);
        const DeviceArray from(device, given);
        const DeviceArray to(device, std::vector<char>(4096));
        ivy_call how = call_with_factor(1);
        how.flags = IVY_ENQUEUE;
        how.stream = device.make_stream();
        // CU_STREAM_CAPTURE_MODE_GLOBAL: calls of any other thread may invalidate the capture.
        ASSERT_EQ(graphs.begin(how.stream, 0), 0);
        ASSERT_EQ(ivy_all_reduce(world, from.data(), to.data(), 1024, IVY_F32, IVY_SUM, &how),
                  IVY_OK)
            << ivy_last_error();
        ivy_work* work = nullptr;
        ivy_call apart = how;
        apart.work = &work;
        ASSERT_EQ(ivy_all_gather(world, from.data(), to.data(), 1024, IVY_F32, &apart), IVY_OK)
            << ivy_last_error();
        ASSERT_EQ(ivy_work_hold_back(work, how.stream), IVY_OK) << ivy_last_error();
        std::this_thread::sleep_for(milliseconds(100));
        void* graph = nullptr;
        ASSERT_EQ(graphs.end(how.stream, &graph), 0);
        ivy_work_free(work);
        void* made = nullptr;
        ASSERT_EQ(graphs.instantiate(&made, graph, 0), 0);
        const auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < 1000; ++i) ASSERT_EQ(graphs.launch(made, how.stream), 0);
        ASSERT_EQ(device.synchronize(how.stream), 0);
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - began;
        EXPECT_EQ(to.bytes(), given);
        std::printf("figure: a graph of two operations, 1,000 times: %.2f us each\n",
                    took.count() / 1000);
        const auto ended = monotonic_ms();
        EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
        std::printf("figure: finalize while a graph holds operations: %lld ms\n",
                    static_cast<long long>(monotonic_ms() - ended));
      },
      long_timeout());
  expect_ok(ends);
  std::printf("%s", ends[0].output.c_str());
}

INSTANTIATE_TEST_SUITE_P(BothWays, SharedGpuTest,
                         ::testing::Values(Way::kMultiRank, Way::kTwoHosts), name_of_way);

}  // namespace
}  // namespace ivy::comm::test
