// SPDX-License-Identifier: Apache-2.0
// The end of NCCL's part of libivycomm, with the test doubles (nccl_double/): deaths, aborts, calls
// that never return, and the end of operations left on streams.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/comm/device.h"
#include "tests/comm/nccl_doubles.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

TEST(NcclTest, FinalizeWaitsForEnqueuedOperations) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
    ASSERT_EQ(ivy_prepare_device(group, rank, nullptr), IVY_OK) << ivy_last_error();
    ivy_call how = call_with_factor(1);
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    const DeviceArray on(device, floats(1000, 1));
    // Longer than NCCL's own finalize takes.
    device.block(how.stream, milliseconds(2'300));
    ASSERT_EQ(ivy_all_reduce(group, IVY_IN_PLACE, on.data(), 1000, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
    EXPECT_EQ(on.bytes(), floats(1000, 2));
    expect_clean_end(world);
  });
}

TEST(NcclTest, FailsFinalizeIfAnOperationIsLate) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    ivy_call how = call_with_timeout(milliseconds(300));
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    const DeviceArray on(device, floats(1000, 1));
    device.block(how.stream, milliseconds(1'000));
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1000, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(world.finalize(), IVY_DEADLINE_EXCEEDED);
    EXPECT_NE(std::string(ivy_last_error()).find("not finished on the device in time"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommAbort"), 1);
  });
}

// Rank 1 is killed during operations. The others get an error, and their streams finish.
void run_until_killed(int rank, bool is_enqueued, Board& board) {
  use_doubles();
  Device device(kCuda, rank);
  World world;
  if (!world) return;
  all_reduce_ones(world, device, 3);
  ivy_call how = call_with_factor(1);
  if (is_enqueued) how.flags = IVY_ENQUEUE;
  const DeviceArray on(device, std::vector<char>(4 << 20));
  std::thread killer;
  if (rank == 1) {
    killer = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(30));
      board.died_ms = monotonic_ms();
      kill(getpid(), SIGKILL);
    });
  }
  int code = IVY_OK;
  while (code == IVY_OK) {
    code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1 << 20, IVY_F32, IVY_SUM, &how);
    if (is_enqueued) device.synchronize(nullptr);
  }
  const auto took = monotonic_ms() - board.died_ms;
  EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
  EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
  EXPECT_LT(took, scaled_time(milliseconds(1000)).count());
  std::printf("told after %lld ms\n", static_cast<long long>(took));
  EXPECT_EQ(calls_of("ncclCommAbort"), 1);
  EXPECT_EQ(device.synchronize(nullptr), 0);
}

TEST(NcclTest, NamesAKilledRankAndFreesTheDevice) {
  for (const bool is_enqueued : {false, true}) {
    const Shared<Board> board;
    const std::vector<RankEnd> ends =
        run_world(one_host(3), [&](int rank) { run_until_killed(rank, is_enqueued, *board); });
    expect_ok(ends, 1);
    std::printf("%s%s", ends[0].output.c_str(), ends[2].output.c_str());
  }
}

TEST(NcclTest, AbortByAnotherThreadEndsAnOperation) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles(kNccl, "error_after=1000");
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    all_reduce_ones(world, device, 2);
    const DeviceArray on(device, std::vector<char>(400));
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(100));
        ivy_comm_abort(world, "enough");
      });
    }
    int code = IVY_OK;
    while (code == IVY_OK) {
      code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 100, IVY_F32, IVY_SUM, nullptr);
    }
    EXPECT_EQ(code, IVY_CANCELLED) << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("enough"), std::string::npos) << ivy_last_error();
    if (other.joinable()) other.join();
    EXPECT_EQ(calls_of("ncclCommAbort"), 1);
  }));
}

// Rank 0 aborts while both ranks hang in NCCL as `script` says.
void abort_while(const std::string& script, const std::function<int(ivy_comm*, int)>& hang) {
  SCOPED_TRACE(script);
  char folder[] = "/tmp/ivy-nccl-test-XXXXXX";  // For unused ids.
  ASSERT_NE(mkdtemp(folder), nullptr);
  expect_ok(run_world(one_host(2), [&](int rank) {
    use_doubles();
    setenv("NCCL_DOUBLE_DIR", folder, 1);
    World world(seconds(40));
    if (!world) return;
    if (script.starts_with("hang_split")) {
      ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    }
    setenv("NCCL_DOUBLE", script.c_str(), 1);
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(200));
        ivy_comm_abort(world, "enough");
      });
    }
    const auto began = monotonic_ms();
    EXPECT_EQ(hang(world, rank), IVY_CANCELLED) << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("enough"), std::string::npos) << ivy_last_error();
    EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(5)).count());
    if (other.joinable()) other.join();
  }));
  std::filesystem::remove_all(folder);
}

int prepare(ivy_comm* comm, int rank) { return ivy_prepare_device(comm, rank, nullptr); }

TEST(NcclTest, AnAbortEndsAHangingInit) {
  abort_while("hang_init", prepare);
  abort_while("hang_call=ncclGetUniqueId", prepare);
  abort_while("hang_call=ncclCommInitRankConfig", prepare);
  abort_while("hang_split", [](ivy_comm* comm, int) {
    ivy_comm* group = nullptr;
    return ivy_comm_split(comm, 0, 0, &group);
  });
  // Rank 1 hangs, so rank 0 waits at the ready barrier.
  abort_while("", [](ivy_comm* comm, int rank) {
    if (rank == 1) setenv("CUDA_DOUBLE", "hang_call=cuInit", 1);
    return ivy_prepare_device(comm, rank, nullptr);
  });
}

TEST(NcclTest, ADeathEndsAHangingInit) {
  const Shared<Board> board;
  expect_ok(run_world(one_host(2),
                      [&](int rank) {
                        use_doubles(kNccl, "hang_init");
                        World world(seconds(40));
                        if (!world) return;
                        std::thread killer;
                        if (rank == 1) {
                          killer = std::thread([&] {
                            std::this_thread::sleep_for(milliseconds(200));
                            board->died_ms = monotonic_ms();
                            kill(getpid(), SIGKILL);
                          });
                        }
                        EXPECT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_UNAVAILABLE);
                        EXPECT_LT(monotonic_ms() - board->died_ms,
                                  scaled_time(milliseconds(1000)).count());
                        EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
                      }),
            1);
}

TEST(NcclTest, AbandonsAHangingCallAtItsDeadline) {
  char folder[] = "/tmp/ivy-nccl-test-XXXXXX";  // For unused ids.
  ASSERT_NE(mkdtemp(folder), nullptr);
  struct Hang {
    const char* variable;
    const char* script;
    std::string what;  // In the hanging rank's error.
  };
  const Hang hangs[] = {
      {"CUDA_DOUBLE", "hang_call=cuInit", "loading the driver and NCCL"},
      {"NCCL_DOUBLE", "hang_call=ncclGetUniqueId", "making the unique id"},
      {"NCCL_DOUBLE", "hang_call=ncclCommInitRankConfig", "init"},
  };
  for (const Hang& hang : hangs) {
    SCOPED_TRACE(hang.script);
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles();
      setenv("NCCL_DOUBLE_DIR", folder, 1);
      World world(seconds(20));
      if (!world) return;
      if (rank == 0) setenv(hang.variable, hang.script, 1);
      const ivy_call how = call_with_timeout(seconds(1));
      const auto began = monotonic_ms();
      EXPECT_EQ(ivy_prepare_device(world, rank, &how), IVY_DEADLINE_EXCEEDED);
      EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(5)).count());
      if (rank != 0) return;
      const std::string wanted =
          "NCCL of communicator world: " + hang.what + " has not returned: exit this process";
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " is not in: " << text;
    }));
  }
  std::filesystem::remove_all(folder);
}

TEST(NcclTest, AnAsynchronousErrorOfNcclEndsTheOperation) {
  for (const bool is_enqueued : {false, true}) {
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles(kNccl, rank == 0 ? "error_after=2" : "");
      Device device(kCuda, rank);
      World world(seconds(20));
      if (!world) return;
      all_reduce_ones(world, device, 2);
      ivy_call how = call_with_factor(1);
      if (is_enqueued) how.flags = IVY_ENQUEUE;
      const DeviceArray on(device, std::vector<char>(400));
      int code = IVY_OK;
      for (int i = 0; i < 1000 && code == IVY_OK; ++i) {
        code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 100, IVY_F32, IVY_SUM, &how);
        if (is_enqueued) device.synchronize(nullptr);
      }
      EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
      EXPECT_NE(std::string(ivy_last_error()).find("remote process exited"), std::string::npos)
          << ivy_last_error();
    }));
  }
}

TEST(NcclTest, NamesAnOperationThatOneRankOnlyCaptures) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    all_reduce_ones(world, device, 2);
    const Graphs graphs(device);
    const DeviceArray on(device, std::vector<char>(400));
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ENQUEUE;
    how.stream = device.make_stream();
    how.timeout_ms = 3'000;
    void* graph = nullptr;  // Never launched.
    if (rank == 0) ASSERT_EQ(graphs.begin(how.stream, 0), 0);
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 100, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    if (rank == 0) ASSERT_EQ(graphs.end(how.stream, &graph), 0);
    int code = IVY_OK;
    while (code == IVY_OK) code = ivy_barrier(world, nullptr);
    EXPECT_EQ(code, IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("rank 0 has recorded 1 operation into graphs"),
              std::string::npos)
        << ivy_last_error();
  }));
}

// Between hosts, NCCL itself detects messages of unexpected sizes.
TEST(NcclTest, ReportsBothSidesAfterAnErrorOfDifferentSizes) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles(kNccl, "error_after=1");
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    all_reduce_ones(world, device, 2);
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ENQUEUE;
    const DeviceArray on(device, std::vector<char>(4000));
    const std::size_t count = rank == 0 ? 100 : 1000;
    int code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), count, IVY_F32, IVY_SUM, &how);
    while (code == IVY_OK) code = ivy_barrier(world, nullptr);
    EXPECT_EQ(code, IVY_ABORTED) << ivy_last_error();
    const std::string text = ivy_last_error();
    for (const char* const side :
         {"rank 0 calls all_reduce(sum) of 100 f32", "rank 1 calls all_reduce(sum) of 1000 f32"}) {
      EXPECT_NE(text.find(side), std::string::npos) << text;
    }
    device.synchronize(nullptr);
  }));
}

TEST(NcclTest, ReportsAnAbortThatNeverReturnsAndContinues) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles(kNccl, "hang_abort,error_after=1");
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
    all_reduce_ones(world, device, 2);
    const auto began = monotonic_ms();
    const DeviceArray on(device, std::vector<char>(400));
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 100, IVY_F32, IVY_SUM, nullptr),
              IVY_UNAVAILABLE);
    EXPECT_NE(std::string(ivy_last_error()).find("ncclCommAbort did not return within 5 s"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(8)).count());
    // From now on NCCL is unusable in this process, and calls report that immediately.
    EXPECT_EQ(ivy_prepare_device(group, rank, nullptr), IVY_INTERNAL);
    EXPECT_NE(std::string(ivy_last_error()).find("did not return within 5 s: exit this process"),
              std::string::npos)
        << ivy_last_error();
  }));
}

// The library abandons the call, because NCCL must not be aborted during finalize.
TEST(NcclTest, ReportsAHangingFinalizeAndTaintsTheProcess) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles(kNccl, "hang_finalize");
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    all_reduce_ones(world, device, 2);
    const auto began = monotonic_ms();
    EXPECT_EQ(world.finalize(), IVY_DEADLINE_EXCEEDED);
    EXPECT_NE(std::string(ivy_last_error()).find("finalize timed out: not finished 2 s after"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(10)).count());
    EXPECT_NE(std::string(ivy_last_error()).find("finalize has not returned: exit this process"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommAbort"), 0);
  }));
}

// The store's process is stopped before NCCL is prepared, or during its hanging init.
TEST(NcclTest, AHangingStoreDoesNotDelayTimeouts) {
  char folder[] = "/tmp/ivy-nccl-test-XXXXXX";  // For unused ids.
  ASSERT_NE(mkdtemp(folder), nullptr);
  for (const int stopped_after_ms : {0, 400}) {
    SCOPED_TRACE(stopped_after_ms);
    const Shared<std::atomic<int>> reported;
    expect_ok(run_world(one_host(3), [&](int rank) {
      use_doubles(kNccl, "hang_init");
      setenv("NCCL_DOUBLE_DIR", folder, 1);
      World world(seconds(20));
      if (!world) return;
      // One rank may have joined while another still waits for the store.
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      const pid_t store = static_cast<pid_t>(std::atoi(std::getenv("IVY_TEST_STORE_PID")));
      std::thread other;
      if (rank == 0 && stopped_after_ms == 0) kill(store, SIGSTOP);
      if (rank == 0 && stopped_after_ms != 0) {
        other = std::thread([&] {
          std::this_thread::sleep_for(milliseconds(stopped_after_ms));
          kill(store, SIGSTOP);
        });
      }
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      const ivy_call how = call_with_timeout(seconds(1));
      const auto began = monotonic_ms();
      EXPECT_EQ(ivy_prepare_device(world, rank, &how), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
      EXPECT_LT(monotonic_ms() - began, 1'000 + scaled_time(milliseconds(1'500)).count());
      std::printf("%s\n", ivy_last_error());
      ++*reported;
      if (other.joinable()) other.join();
      while (*reported < 3) std::this_thread::sleep_for(milliseconds(5));
      if (rank == 0) kill(store, SIGCONT);
    }));
  }
  std::filesystem::remove_all(folder);
}

TEST(NcclTest, LeavesNothingBehind) {
  char folder[] = "/tmp/ivy-nccl-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  for (const char* const script : {"", "fail_init", "hang_abort,error_after=1"}) {
    run_world(one_host(3), [&](int rank) {
      use_doubles(kNccl, script);
      setenv("NCCL_DOUBLE_DIR", folder, 1);
      Device device(kCuda, rank);
      World world(seconds(5));
      if (!world) return;
      const DeviceArray on(device, std::vector<char>(4));
      for (int i = 0; i < 3; ++i) {
        ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1, IVY_F32, IVY_SUM, nullptr);
      }
      ivy_comm* group = nullptr;
      ivy_comm_split(world, rank % 2, 0, &group);
    });
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ivy::comm::test
