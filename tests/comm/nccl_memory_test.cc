// SPDX-License-Identifier: Apache-2.0
// Device memory of the library, and its use by NCCL and the devices, with the test doubles.
#include <thread>

#include "tests/comm/device.h"
#include "tests/comm/nccl_doubles.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// Memory of ivy_mem_alloc_device, filled with ones.
char* ones_of(ivy_comm* comm, Device& device, std::size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(ivy_mem_alloc_device(comm, -1, count * sizeof(float), &memory), IVY_OK)
      << ivy_last_error();
  const std::vector<char> ones = floats(count, 1);
  if (memory != nullptr) device.write(memory, ones.data(), ones.size());
  return static_cast<char*>(memory);
}

std::vector<char> read_floats(Device& device, const void* memory, std::size_t count) {
  std::vector<char> bytes(count * sizeof(float));
  device.read(bytes.data(), memory, bytes.size());
  return bytes;
}

int all_reduce(ivy_comm* comm, void* memory, const ivy_call* how = nullptr) {
  return ivy_all_reduce(comm, IVY_IN_PLACE, memory, 1000, IVY_F32, IVY_SUM, how);
}

TEST(NcclMemoryTest, RegistersAtFirstUseAndDeregistersWhenFreed) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    char* const memory = ones_of(world, device, 2000);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(calls_of("ncclMemAlloc"), 1);
    EXPECT_EQ(calls_of("ncclCommRegister"), 0);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(all_reduce(world, memory), IVY_OK) << ivy_last_error();
    ASSERT_EQ(all_reduce(world, memory + 4000), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommRegister"), 1);
    EXPECT_EQ(read_floats(device, memory, 1000), floats(1000, 8));
    EXPECT_EQ(read_floats(device, memory + 4000, 1000), floats(1000, 2));
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
    ASSERT_EQ(all_reduce(group, memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommRegister"), 2) << "each communicator registers it separately";
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommDeregister"), 2);
    EXPECT_EQ(calls_of("ncclMemFree"), 1);
    EXPECT_EQ(ivy_mem_free(memory), IVY_INVALID_ARGUMENT);
    all_reduce_ones(world, device, 2);
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("leaked"), 0);
  });
}

TEST(NcclMemoryTest, OutlivesTheWorldThatDeregistersIt) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    char* const memory = ones_of(world, device, 1000);
    ASSERT_EQ(all_reduce(world, memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommDeregister"), 1);
    EXPECT_EQ(read_floats(device, memory, 1000), floats(1000, 2));
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("leaked"), 0);
  });
}

TEST(NcclMemoryTest, UsesMemoryThatNcclCannotRegister) {
  for (const std::string& nccl : {kNccl, kDoubles + "/libnccl_double_2_14.so"}) {
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles(nccl, "no_register");
      Device device(kCuda, rank);
      World world;
      if (!world) return;
      char* const memory = ones_of(world, device, 1000);
      ASSERT_EQ(all_reduce(world, memory), IVY_OK) << ivy_last_error();
      EXPECT_EQ(read_floats(device, memory, 1000), floats(1000, 2));
      EXPECT_EQ(ivy_mem_window(world, memory, nullptr), nccl == kNccl ? IVY_UNAVAILABLE : IVY_OK)
          << ivy_last_error();
      EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
    }));
  }
}

TEST(NcclMemoryTest, IsNotFreedWhileAnOperationUsesIt) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    all_reduce_ones(world, device, 2);
    char* const memory = ones_of(world, device, 1000);
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ENQUEUE;
    how.stream = device.make_stream();
    device.block(how.stream, milliseconds(300));
    const auto began = monotonic_ms();
    ASSERT_EQ(all_reduce(world, memory, &how), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
    EXPECT_GE(monotonic_ms() - began, 290);
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("leaked"), 0);
  });
}

// Waits until this many ranks have called it, by the store, so that no operation is in progress.
// The communicator may break while a rank waits here, so the result is not checked.
void await_all(World& world, std::int64_t ranks) {
  std::int64_t arrived = 0;
  ASSERT_EQ(ivy_store_add(world, "arrived", 1, &arrived), IVY_OK) << ivy_last_error();
  if (arrived == ranks) ASSERT_EQ(ivy_store_set(world, "all here", "", 0), IVY_OK);
  const char* const key = "all here";
  ivy_store_wait(world, &key, 1, 30'000);
}

TEST(NcclMemoryTest, BecomesAWindowOfAllRanks) {
  on_devices(one_host(3), [](int rank, World& world, Device& device) {
    char* const memory = ones_of(world, device, 1000);
    ASSERT_EQ(ivy_mem_window(world, memory, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommWindowRegister"), 1);
    const int before = calls_of("ncclCommRegister");
    ASSERT_EQ(all_reduce(world, memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommRegister"), before) << "a window needs no other registration";
    EXPECT_EQ(read_floats(device, memory, 1000), floats(1000, 3));
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommWindowDeregister"), 1);
    // The mismatch below breaks the communicator, and with it an operation of a rank that is late.
    await_all(world, 3);
    std::vector<char> host(16);
    EXPECT_EQ(ivy_mem_window(world, host.data(), nullptr), IVY_INVALID_ARGUMENT);
    char* const unlike = ones_of(world, device, rank == 2 ? 500 : 1000);
    EXPECT_EQ(ivy_mem_window(world, unlike, nullptr), IVY_ABORTED) << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("init with 2000 bytes of device memory"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(ivy_mem_free(unlike), IVY_OK) << ivy_last_error();
  });
}

TEST(NcclMemoryTest, AGraphRegistersNothing) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    const Graphs graphs(device);
    World world;
    if (!world) return;
    ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    char* const memory = ones_of(world, device, 1000);
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ENQUEUE;
    how.stream = device.make_stream();
    ASSERT_EQ(graphs.begin(how.stream, 0), 0);
    ASSERT_EQ(all_reduce(world, memory, &how), IVY_OK) << ivy_last_error();
    void* graph = nullptr;
    ASSERT_EQ(graphs.end(how.stream, &graph), 0);
    EXPECT_EQ(calls_of("ncclCommRegister"), 0);
    void* made = nullptr;
    ASSERT_EQ(graphs.instantiate(&made, graph, 0), 0);
    ASSERT_EQ(graphs.launch(made, how.stream), 0);
    device.synchronize(how.stream);
    EXPECT_EQ(read_floats(device, memory, 1000), floats(1000, 2));
  }));
}

TEST(NcclMemoryTest, ReportsAFailedAllocation) {
  expect_ok(run_world(one_host(1), [](int) {
    use_doubles(kNccl, "no_memory");
    World world;
    if (!world) return;
    void* memory = nullptr;
    EXPECT_EQ(ivy_mem_alloc_device(world, 99, 8, &memory), IVY_FAILED_PRECONDITION);
    EXPECT_NE(std::string(ivy_last_error()).find("device 99 does not exist"), std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(ivy_mem_alloc_device(world, 0, 8, &memory), IVY_RESOURCE_EXHAUSTED);
    EXPECT_NE(std::string(ivy_last_error()).find("8 bytes of device 0: ncclMemAlloc"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(ivy_mem_alloc_device(world, 0, 8, nullptr), IVY_INVALID_ARGUMENT);
  }));
  expect_ok(run_world(one_host(1), [](int) {
    use_doubles();
    setenv("CUDA_DOUBLE", "no_device", 1);
    World world;
    if (!world) return;
    void* memory = nullptr;
    EXPECT_EQ(ivy_mem_alloc_device(world, -1, 8, &memory), IVY_FAILED_PRECONDITION);
    EXPECT_NE(std::string(ivy_last_error()).find("nvidia-smi"), std::string::npos)
        << ivy_last_error();
  }));
}

// ---- Mistakes -----------------------------------------------------------------------------------

// The rejected rank has not started the operation, so it may call again.
TEST(NcclMistakeTest, RejectsAStreamOfAnotherDeviceByNumber) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    Device other(kCuda, rank + 8);
    ivy_call how = call_with_factor(1);
    how.stream = other.make_stream();
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    const DeviceArray on(device, floats(1000, 1));
    ivy_call well = call_with_factor(1);
    well.stream = device.make_stream();
    for (int round = 0; round < 2; ++round) {
      if (rank == 1) {
        EXPECT_EQ(all_reduce(world, on.data(), &how), IVY_INVALID_ARGUMENT);
        EXPECT_NE(std::string(ivy_last_error())
                      .find("the buffers are on device 1, but the stream was created for another"),
                  std::string::npos)
            << ivy_last_error();
      }
      EXPECT_EQ(all_reduce(world, on.data(), &well), IVY_OK) << ivy_last_error();
    }
    EXPECT_EQ(on.bytes(), floats(1000, 4));
  }));
}

// Ranks that wait for the rejected one time out and name it.
TEST(NcclMistakeTest, NotifiesRanksThatWaitForARejectedRank) {
  const Shared<std::atomic<bool>> is_reported;
  expect_ok(run_world(one_host(2), [&](int rank) {
    use_doubles();
    Device other(kCuda, rank + 8);
    ivy_call how = call_with_timeout(seconds(2));
    how.stream = other.make_stream();
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    all_reduce_ones(world, device, 2);
    const DeviceArray on(device, floats(1000, 1));
    if (rank == 1) {
      EXPECT_EQ(all_reduce(world, on.data(), &how), IVY_INVALID_ARGUMENT);
      while (!*is_reported) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    how.stream = nullptr;
    EXPECT_EQ(all_reduce(world, on.data(), &how), IVY_DEADLINE_EXCEEDED);
    EXPECT_NE(std::string(ivy_last_error()).find("rank 1 has called 0 operations on devices"),
              std::string::npos)
        << ivy_last_error();
    *is_reported = true;
  }));
}

// Freed with an allocator that does not wait, like cudaFreeAsync: the device detects it.
TEST(NcclMistakeTest, ReportsMemoryFreedInFlightOnEveryRank) {
  expect_ok(run_world(one_host(3), [](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    int (*free_now)(std::uintptr_t, void*) = nullptr;
    ASSERT_TRUE(device.take(free_now, "cuMemFreeAsync"));
    World world;
    if (!world) return;
    all_reduce_ones(world, device, 3);
    ivy_call how = call_with_timeout(seconds(20));
    how.flags = IVY_ENQUEUE;
    how.stream = device.make_stream();
    device.block(how.stream, milliseconds(100));
    void* const memory = device.allocate(4000);
    const auto began = monotonic_ms();
    ASSERT_EQ(all_reduce(world, memory, &how), IVY_OK) << ivy_last_error();
    if (rank == 1) {
      EXPECT_EQ(free_now(reinterpret_cast<std::uintptr_t>(memory), nullptr), 0);
    }
    int code = IVY_OK;
    while (code == IVY_OK) code = ivy_barrier(world, nullptr);
    EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("an illegal memory access was encountered"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(5)).count());
    // A rank whose own operation was still pending may report it once more.
    const int detached = world.finalize();
    EXPECT_TRUE(detached == IVY_OK || detached == IVY_UNAVAILABLE) << ivy_last_error();
  }));
}

// One rank captures an operation that the other calls with another type. The mismatch is reported
// although the capture never runs.
TEST(NcclMistakeTest, ReportsBothSidesOfACaptureThatDiffers) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    const Graphs graphs(device);
    World world;
    if (!world) return;
    ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    const DeviceArray on(device, floats(1000, 1));
    ivy_call how = call_with_timeout(seconds(10));
    how.flags = IVY_ENQUEUE;
    how.stream = device.make_stream();
    ASSERT_EQ(graphs.begin(how.stream, 0), 0);
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1000, rank == 0 ? IVY_F32 : IVY_I32,
                             IVY_SUM, &how),
              IVY_OK)
        << ivy_last_error();
    void* graph = nullptr;
    ASSERT_EQ(graphs.end(how.stream, &graph), 0);
    const auto began = monotonic_ms();
    int code = IVY_OK;
    while (code == IVY_OK) {
      std::this_thread::sleep_for(milliseconds(10));
      code = ivy_barrier(world, nullptr);
    }
    EXPECT_EQ(code, IVY_ABORTED) << ivy_last_error();
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find("rank 0 calls all_reduce(sum) of 1000 f32"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 calls all_reduce(sum) of 1000 i32"), std::string::npos) << text;
    EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(10)).count());
  }));
}

}  // namespace
}  // namespace ivy::comm::test
