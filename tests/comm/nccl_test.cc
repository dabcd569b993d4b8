// SPDX-License-Identifier: Apache-2.0
// NCCL's part of libivycomm on the test doubles (nccl_double/): real processes and bytes, but no
// device.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/comm/device.h"
#include "tests/comm/device_operations.h"
#include "tests/comm/nccl_doubles.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

class NcclWorlds : public ::testing::TestWithParam<Hosts> {};

TEST_P(NcclWorlds, EveryCollectiveProducesTheResultsOfTheHost) {
  const Hosts hosts = GetParam();
  on_devices(hosts, [&](int rank, World& world, Device& device) {
    const ivy_call how = call_with_factor(rank % 2 == 0 ? 2 : 1);
    for (const std::size_t count : {std::size_t{1}, std::size_t{35}}) {
      for (const DeviceCase& one : device_cases(count)) compare_with_host(world, device, one, &how);
    }
    compare_with_host(world, device, {IVY_F32, IVY_SUM, 30'001}, &how);
    EXPECT_GT(calls_of("ncclAllReduce"), 10);
    EXPECT_GT(calls_of("ncclAllGather"), 10);
    EXPECT_EQ(calls_of("ncclGetUniqueId"), rank == 0 ? 1 : 0);
    expect_clean_end(world);
  });
}

TEST(NcclTest, NcclComputesFloatingPointAverages) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    const ivy_call how = call_with_factor(1);
    for (const DeviceCase& one : average_cases(35)) {
      const int before = calls_of("ncclAllReduce");
      compare_with_host(world, device, one, &how);
      EXPECT_GT(calls_of("ncclAllReduce"), before) << one.dtype;
    }
  });
}

// The test double does not process the end of a large buffer, like NCCL 2.28.9.
TEST(NcclTest, ReducesWholeBuffersInAWorldOfOne) {
  on_devices(one_host(1), [](int, World& world, Device& device) {
    const ivy_call how = call_with_factor(2);
    for (const std::size_t count : {100'000, 100'001, 100'002, 100'003}) {
      compare_with_host(world, device, {IVY_F32, IVY_AVG, count}, &how);
      compare_with_host(world, device, {IVY_F32, IVY_PREMUL_SUM, count}, &how);
      compare_with_host(world, device, {IVY_F64, IVY_PREMUL_SUM, count}, &how);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclWorlds,
                         ::testing::Values(one_host(1), one_host(2), one_host(3), one_host(4),
                                           host_each(2), Hosts{2, 1}),
                         [](const auto& test) { return "On_" + hosts_text(test.param); });

TEST(NcclTest, EveryCollectiveWorksWithTheFunctionsOfNccl214) {
  expect_ok(run_world(one_host(3), [](int rank) {
    use_doubles(kDoubles + "/libnccl_double_2_14.so", "version=21403");
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    const ivy_call how = call_with_factor(1);
    compare_with_host(world, device, {IVY_F32, IVY_SUM, 7}, &how);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank % 2, 0, &group), IVY_OK) << ivy_last_error();
    compare_with_host(group, device, {IVY_F32, IVY_SUM, 7}, &how);
  }));
}

class NcclCrowds : public ::testing::TestWithParam<int> {};

TEST_P(NcclCrowds, SynchronizeAndReduce) {
  const int size = GetParam();
  WorldOptions options;
  options.deadline = seconds(100);
  expect_ok(run_world(
      one_host(size),
      [size](int rank) {
        use_doubles();
        Device device(kCuda, rank);
        World world;
        if (world) all_reduce_ones(world, device, size);
      },
      options));
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclCrowds, ::testing::Values(8, 16, 64));

TEST(NcclTest, GroupsSplitTheWorldsCommunicator) {
  on_devices(one_host(4), [](int rank, World& world, Device& device) {
    all_reduce_ones(world, device, 4);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank % 2, -rank, &group), IVY_OK) << ivy_last_error();
    all_reduce_ones(group, device, 2);
    const ivy_call how = call_with_factor(1);
    compare_with_host(group, device, {IVY_I32, IVY_SUM, 5}, &how);
    const std::int32_t ranks[] = {3, 1, 0};
    ivy_comm* three = nullptr;
    ASSERT_EQ(ivy_comm_group(world, ranks, 3, &three), IVY_OK) << ivy_last_error();
    EXPECT_EQ(three == nullptr, rank == 2);
    if (three != nullptr) compare_with_host(three, device, {IVY_I32, IVY_SUM, 5}, &how);
    EXPECT_EQ(calls_of("ncclCommSplit"), 2);
    EXPECT_EQ(calls_of("ncclGetUniqueId"), rank == 0 ? 1 : 0);
    for (const ivy_comm* comm : {static_cast<ivy_comm*>(world), group, three}) {
      if (comm == nullptr) continue;
      const std::string name = ivy_comm_name(comm);
      EXPECT_EQ(calls_of(("name " + name).c_str()), 1) << name;
    }
  });
}

TEST(NcclTest, UsesSeveralRootsForOneCommunicator) {
  expect_ok(run_world(one_host(5), [](int rank) {
    use_doubles();
    setenv("IVY_NCCL_ROOTS", "2", 1);
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    all_reduce_ones(world, device, 5);
    EXPECT_EQ(calls_of("ncclCommInitRankScalable"), 1);
    EXPECT_EQ(calls_of("ncclGetUniqueId"), rank == 0 || rank == 3 ? 1 : 0);
  }));
}

// The pointer of an empty part may be NULL next to device memory, both natively in NCCL and staged.
TEST(NcclTest, AcceptsANullPointerForAnEmptyPart) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    constexpr std::size_t kCount = 50;
    const std::vector<char> given = values_of(IVY_I32, kCount, rank);
    for (const int op : {IVY_SUM, IVY_BXOR}) {
      for (std::size_t empty = 0; empty < 3; ++empty) {
        const DeviceArray first(device, given);
        const DeviceArray second(device, given);
        std::vector<const void*> from = {first.data(), second.data()};
        std::vector<void*> to = {first.data(), second.data()};
        std::vector<std::size_t> counts = {kCount, kCount};
        const auto place = static_cast<std::ptrdiff_t>(empty);
        from.insert(from.begin() + place, nullptr);
        to.insert(to.begin() + place, nullptr);
        counts.insert(counts.begin() + place, 0);
        ASSERT_EQ(ivy_all_reduce_coalesced(world, 3, from.data(), to.data(), counts.data(), IVY_I32,
                                           op, nullptr),
                  IVY_OK)
            << ivy_last_error();
        std::vector<char> expected = given;
        ASSERT_EQ(
            ivy_all_reduce(world, IVY_IN_PLACE, expected.data(), kCount, IVY_I32, op, nullptr),
            IVY_OK);
        EXPECT_EQ(first.bytes(), expected);
        EXPECT_EQ(second.bytes(), expected);
      }
    }
    // All parts are empty, and the call is still an operation on the device.
    const void* const nowhere[] = {nullptr, nullptr};
    void* const to_nowhere[] = {nullptr, nullptr};
    const std::size_t nothing[] = {0, 0};
    ivy_call reported = call_with_factor(1);
    reported.flags = IVY_DEVICE_MEMORY;
    const int before = calls_of("ncclAllReduce");
    EXPECT_EQ(ivy_all_reduce_coalesced(world, 2, nowhere, to_nowhere, nothing, IVY_I32, IVY_SUM,
                                       &reported),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(calls_of("ncclAllReduce"), before) << "an empty operation must not reach NCCL";
    // Memory elsewhere is still rejected, by the numbers of the non-empty parts.
    const DeviceArray on(device, given);
    std::vector<char> host = given;
    const void* const from[] = {nullptr, on.data(), host.data()};
    void* const to[] = {nullptr, on.data(), host.data()};
    const std::size_t counts[] = {0, kCount, kCount};
    EXPECT_EQ(ivy_all_reduce_coalesced(world, 3, from, to, counts, IVY_I32, IVY_SUM, nullptr),
              IVY_INVALID_ARGUMENT);
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find("part 2 is not where part 1 is"), std::string::npos) << text;
    expect_clean_end(world);
  });
}

TEST(NcclTest, SearchesAgainForAMissingLibrary) {
  expect_ok(run_world(one_host(1), [](int) {
    use_doubles("/no/libnccl.so.2");
    Device device(kCuda, 0);
    ivy_comm* first = nullptr;
    ASSERT_EQ(ivy_init(nullptr, &first), IVY_OK) << ivy_last_error();
    EXPECT_NE(ivy_prepare_device(first, 0, nullptr), IVY_OK);
    ivy_finalize(first);
    setenv("IVY_NCCL_LIB", kNccl.c_str(), 1);
    World world;
    ASSERT_TRUE(world);
    EXPECT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
  }));
}

TEST(NcclTest, UsesALibraryThatIsAlreadyLoaded) {
  expect_ok(run_world(one_host(1), [](int) {
    use_doubles();
    unsetenv("IVY_NCCL_LIB");
    ASSERT_NE(dlopen(kNccl.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr);
    Device device(kCuda, 0);
    World world;
    if (world) all_reduce_ones(world, device, 1);
    EXPECT_EQ(calls_of("ncclAllReduce"), 1);
  }));
}

TEST(NcclTest, EnqueuedOperationsEndInTheOrderOfTheStream) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    ivy_call how = call_with_factor(1);
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    for (int i = 0; i < 20; ++i) {
      compare_with_host(world, device, {IVY_F32, IVY_SUM, 100}, &how);
    }
    // Starts operations without waiting for any of them.
    const DeviceArray on(device, std::vector<char>(1 << 20, 0));
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1 << 18, IVY_F32, IVY_SUM, &how),
                IVY_OK)
          << ivy_last_error();
    }
  });
}

TEST(NcclTest, AsynchronousWorkWaitsForEarlierWorkOfTheStream) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    ivy_work* work[8] = {};
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    for (ivy_work*& one : work) {
      arrays.push_back(std::make_unique<DeviceArray>(device, values_of(IVY_I32, 1000, rank)));
      const ivy_call how = call_for_work(&one);
      ASSERT_EQ(
          ivy_all_reduce(world, IVY_IN_PLACE, arrays.back()->data(), 1000, IVY_I32, IVY_SUM, &how),
          IVY_OK)
          << ivy_last_error();
    }
    std::vector<char> expected = values_of(IVY_I32, 1000, rank);
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, expected.data(), 1000, IVY_I32, IVY_SUM, nullptr),
              IVY_OK);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      EXPECT_EQ(ivy_work_wait(work[i], 20'000), IVY_OK) << ivy_last_error();
      EXPECT_EQ(arrays[i]->bytes(), expected);
      ivy_work_free(work[i]);
    }
    expect_clean_end(world);
  });
}

TEST(NcclTest, ServesCallersWithoutTheDeviceField) {
  on_devices(one_host(2), [](int, World& world, Device& device) {
    ivy_call how = call_with_factor(1);
    how.struct_bytes = offsetof(ivy_call, stream);
    how.stream = reinterpret_cast<void*>(8);  // Other data after the structure.
    how.flags = ~std::uint64_t{0};
    compare_with_host(world, device, {IVY_F32, IVY_SUM, 10}, nullptr);
    const DeviceArray on(device, std::vector<char>(4));
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    float host = 1;
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &host, 1, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(host, 2);
  });
}

// Host memory is passed on to NCCL, which shows that the library does not query the driver.
TEST(NcclTest, TrustsACallerThatNamesTheDevice) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ON_DEVICE;
    how.device = rank;
    compare_with_host(world, device, {IVY_F32, IVY_SUM, 10}, &how);
    std::vector<float> memory(10, 1);
    const auto rejected_with = [&](const char* words) {
      EXPECT_NE(ivy_all_reduce(world, IVY_IN_PLACE, memory.data(), 10, IVY_F32, IVY_SUM, &how),
                IVY_OK);
      EXPECT_NE(std::string(ivy_last_error()).find(words), std::string::npos) << ivy_last_error();
    };
    how.device = rank + 1;
    rejected_with("but this rank's device in communicator world is");
    how.device = -1;
    rejected_with("IVY_ON_DEVICE is set, but ivy_call.device is -1");
    how.struct_bytes = offsetof(ivy_call, device);
    rejected_with("ivy_call.struct_bytes does not include the field `device`");
    how.struct_bytes = sizeof how;
    how.device = rank;
    rejected_with("all_reduce: invalid argument: so says the stand-in");
  });
}

// The same in the communicator's first operation, before any rank has loaded a driver.
TEST(NcclTest, RejectsAMissingDeviceByNumber) {
  expect_ok(run_world(one_host(1), [](int) {
    use_doubles();
    World world;
    if (!world) return;
    ivy_call how = call_with_factor(1);
    how.flags = IVY_ON_DEVICE;
    how.device = 99;
    float number = 1;
    EXPECT_NE(ivy_all_reduce(world, IVY_IN_PLACE, &number, 1, IVY_F32, IVY_SUM, &how), IVY_OK);
    EXPECT_NE(std::string(ivy_last_error()).find("99"), std::string::npos) << ivy_last_error();
  }));
}

TEST(NcclTest, SendsMessagesBetweenDevicesThroughNccl) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    const int other = 1 - rank;
    const DeviceArray from(device, floats(1000, static_cast<float>(rank + 1)));
    const DeviceArray to(device, floats(1000, 0));
    EXPECT_EQ(ivy_send(world, from.data(), 1000, IVY_F32, other, 0, nullptr), IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("cannot be the communicator's first operation"),
              std::string::npos)
        << ivy_last_error();
    ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    ivy_message reported = {};
    reported.struct_bytes = sizeof reported;
    const int code = rank == 0
                         ? ivy_send(world, from.data(), 1000, IVY_F32, 1, 0, nullptr)
                         : ivy_recv(world, to.data(), 1000, IVY_F32, 0, 0, &reported, nullptr);
    ASSERT_EQ(code, IVY_OK) << ivy_last_error();
    if (rank == 1) {
      EXPECT_EQ(to.bytes(), floats(1000, 1));
      EXPECT_EQ(reported.source, 0);
      EXPECT_EQ(reported.bytes, 4000U);
    }
    ASSERT_EQ(ivy_sendrecv(world, from.data(), 1000, other, 0, to.data(), 1000, other, IVY_ANY_TAG,
                           IVY_F32, &reported, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(to.bytes(), floats(1000, static_cast<float>(other + 1)));
    EXPECT_EQ(reported.source, other);
    EXPECT_EQ(ivy_send(world, from.data(), 1, IVY_F32, other, 7, nullptr), IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("the tag must be 0"), std::string::npos);
    EXPECT_EQ(ivy_recv(world, to.data(), 1, IVY_F32, IVY_ANY_SOURCE, 0, nullptr, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("the sender must be given"), std::string::npos);
    float host = 0;
    EXPECT_EQ(ivy_all_reduce(world, &host, from.data(), 1, IVY_F32, IVY_SUM, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("in the same memory"), std::string::npos);
    expect_clean_end(world);
  });
}

// Each rank sends first: without a group, the first send would wait forever for the peer's receive.
TEST(NcclTest, PassesAGroupOfOperationsToNcclAsOneGroup) {
  on_devices(one_host(2), [](int rank, World& world, Device& device) {
    all_reduce_ones(world, device, 2);
    ivy_call how = call_with_factor(1);
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    const DeviceArray from(device, floats(1000, static_cast<float>(rank + 1)));
    const DeviceArray to(device, floats(1000, 0));
    const DeviceArray sum(device, floats(10, 1));
    ivy_work* work = nullptr;
    ASSERT_EQ(ivy_group_begin(), IVY_OK);
    ASSERT_EQ(ivy_send(world, from.data(), 1000, IVY_F32, 1 - rank, 0, &how), IVY_OK)
        << ivy_last_error();
    ivy_call apart = how;
    apart.work = &work;
    ASSERT_EQ(ivy_recv(world, to.data(), 1000, IVY_F32, 1 - rank, 0, nullptr, &apart), IVY_OK)
        << ivy_last_error();
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, sum.data(), 10, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, sum.data(), 10, IVY_F32, IVY_SUM, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("waited for inside a group"), std::string::npos)
        << ivy_last_error();
    ASSERT_EQ(ivy_group_end(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_group_end(), IVY_FAILED_PRECONDITION);
    // A communicator from a split is not ready for a group before its first collective.
    ivy_comm* both = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, rank, &both), IVY_OK) << ivy_last_error();
    ASSERT_EQ(ivy_group_begin(), IVY_OK);
    EXPECT_EQ(ivy_all_reduce(both, IVY_IN_PLACE, sum.data(), 10, IVY_F32, IVY_MAX, &how),
              IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("first operation on a device"), std::string::npos)
        << ivy_last_error();
    ASSERT_EQ(ivy_group_end(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_free(both), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_work_wait(work, 20'000), IVY_OK) << ivy_last_error();
    ivy_message reported = {};
    reported.struct_bytes = sizeof reported;
    EXPECT_EQ(ivy_work_message(work, &reported), IVY_OK) << ivy_last_error();
    EXPECT_EQ(reported.source, 1 - rank);
    ivy_work_free(work);
    device.synchronize(how.stream);
    EXPECT_EQ(to.bytes(), floats(1000, static_cast<float>(2 - rank)));
    EXPECT_EQ(sum.bytes(), floats(10, 2));
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(calls_of("ncclCommAbort"), 0);
  });
}

// Rank 1 is late for every operation, but rank 0 does not wait for it.
TEST(NcclTest, OperationsRunAheadOfOtherRanks) {
  for (const bool is_lagged : {true, false}) {
    const Shared<std::atomic<bool>> is_ahead;
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles();
      if (!is_lagged) setenv("IVY_DEVICE_CHECK", "every", 1);
      Device device(kCuda, rank);
      World world;
      if (!world) return;
      all_reduce_ones(world, device, 2);
      ivy_call how = call_with_factor(1);
      how.stream = device.make_stream();
      how.flags = IVY_ENQUEUE;
      const DeviceArray on(device, floats(1000, 1));
      const auto began = monotonic_ms();
      if (rank == 1) {
        while (!*is_ahead && monotonic_ms() - began < 1'000) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        EXPECT_EQ(*is_ahead, is_lagged);
      }
      for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1000, IVY_F32, IVY_MAX, &how),
                  IVY_OK)
            << ivy_last_error();
      }
      if (rank == 0) *is_ahead = true;
      device.synchronize(how.stream);
      EXPECT_EQ(on.bytes(), floats(1000, 1));
      expect_clean_end(world);
    }));
  }
}

TEST(NcclTest, LimitsTheOperationsThatRunAhead) {
  const Shared<std::atomic<int>> ahead;
  expect_ok(run_world(one_host(2), [&](int rank) {
    use_doubles();
    setenv("IVY_DEVICE_AHEAD", "5", 1);
    Device device(kCuda, rank);
    World world;
    if (!world) return;
    all_reduce_ones(world, device, 2);
    ivy_call how = call_with_factor(1);
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    const DeviceArray on(device, floats(10, 1));
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      EXPECT_EQ(*ahead, 5);
    }
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 10, IVY_F32, IVY_MAX, &how), IVY_OK)
          << ivy_last_error();
      if (rank == 0) ++*ahead;
    }
    expect_clean_end(world);
  }));
}

// Operations on the stream after hold_back() see the result, while the processor does not wait.
TEST(NcclTest, HoldsBackAStreamWithoutBlockingTheProcessor) {
  const Shared<std::atomic<bool>> has_continued;
  on_devices(one_host(2), [&](int rank, World& world, Device& device) {
    all_reduce_ones(world, device, 2);
    void* const stream = device.make_stream();
    const DeviceArray on(device, floats(1000, 1));
    if (rank == 1) {
      while (!*has_continued) std::this_thread::sleep_for(milliseconds(1));
    }
    ivy_work* work = nullptr;
    ivy_call how = call_for_work(&work);
    how.stream = stream;
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1000, IVY_F32, IVY_SUM, &how), IVY_OK)
        << ivy_last_error();
    ASSERT_EQ(ivy_work_hold_back(work, stream), IVY_OK) << ivy_last_error();
    int is_done = 0;
    EXPECT_EQ(ivy_work_test(work, &is_done), IVY_OK);
    EXPECT_TRUE(is_done == 0 || rank == 1);
    *has_continued = true;
    device.synchronize(stream);
    EXPECT_EQ(on.bytes(), floats(1000, 2));
    EXPECT_EQ(ivy_work_wait(work, 20'000), IVY_OK) << ivy_last_error();
    ivy_work_free(work);
    expect_clean_end(world);
  });
}

TEST(NcclTest, RunsCapturedOperationsRepeatedly) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    const Graphs graphs(device);
    World world;
    if (!world) return;
    ivy_call how = call_with_factor(1);
    how.stream = device.make_stream();
    how.flags = IVY_ENQUEUE;
    const DeviceArray on(device, floats(1000, 1));
    const auto all_reduce = [&](const ivy_call& by) {
      return ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1000, IVY_F32, IVY_SUM, &by);
    };
    ASSERT_EQ(graphs.begin(how.stream, 0), 0);
    EXPECT_EQ(all_reduce(how), IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("first operation on a device"), std::string::npos)
        << ivy_last_error();
    void* graph = nullptr;
    ASSERT_EQ(graphs.end(how.stream, &graph), 0);
    ASSERT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
    ASSERT_EQ(graphs.begin(how.stream, 0), 0);
    ivy_call waits = how;
    waits.flags = 0;
    EXPECT_EQ(all_reduce(waits), IVY_INVALID_ARGUMENT);
    EXPECT_EQ(all_reduce(how), IVY_OK) << ivy_last_error();
    ivy_work* work = nullptr;
    ivy_call apart = how;
    apart.work = &work;
    EXPECT_EQ(all_reduce(apart), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_work_hold_back(work, how.stream), IVY_OK) << ivy_last_error();
    // Gives the watching thread time to invalidate the capture.
    std::this_thread::sleep_for(milliseconds(50));
    ASSERT_EQ(graphs.end(how.stream, &graph), 0);
    ivy_work_free(work);
    EXPECT_EQ(on.bytes(), floats(1000, 1));
    void* made = nullptr;
    ASSERT_EQ(graphs.instantiate(&made, graph, 0), 0);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(graphs.launch(made, how.stream), 0);
    device.synchronize(how.stream);
    EXPECT_EQ(on.bytes(), floats(1000, 1 << 20));
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
  }));
}

// ---- Mistakes -----------------------------------------------------------------------------------

TEST(NcclTest, ReportsHostAndDeviceMemoryInOneOperationWithBothSides) {
  for (const Hosts& hosts : {one_host(2), host_each(2)}) {
    expect_ok(run_world(hosts, [](int rank) {
      use_doubles();
      Device device(kCuda, rank);
      World world(seconds(20));
      if (!world) return;
      const DeviceArray on(device, std::vector<char>(40));
      std::vector<float> host(10);
      void* const buffer = rank == 0 ? static_cast<void*>(on.data()) : host.data();
      EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, buffer, 10, IVY_F32, IVY_SUM, nullptr),
                IVY_ABORTED);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("rank 0 calls all_reduce(sum) of 10 f32 in device memory"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("rank 1 calls all_reduce(sum) of 10 f32 in host memory"),
                std::string::npos)
          << text;
    }));
  }
}

// The third call of each rank, after two operations in which the ranks do not wait for each other.
struct Third {
  const char* name;
  std::function<int(ivy_comm*, Device&, int rank, const ivy_call*)> call;
  std::vector<std::string> says;
  bool is_found_by_rank_1 = false;
};

TEST(NcclTest, ShowsBothSidesOfALaterMismatch) {
  const auto all_reduce = [](ivy_comm* comm, Device& device, std::size_t count, int dtype,
                             const ivy_call* how) {
    const DeviceArray on(device, std::vector<char>(8'000));
    return ivy_all_reduce(comm, IVY_IN_PLACE, on.data(), count, dtype, IVY_SUM, how);
  };
  const Third thirds[] = {
      {"types of one size, which NCCL does not notice",
       [&](ivy_comm* comm, Device& device, int rank, const ivy_call* how) {
         return all_reduce(comm, device, 1000, rank == 0 ? IVY_F32 : IVY_I32, how);
       },
       {"operation 3 on devices differs between ranks", "rank 0 calls all_reduce(sum) of 1000 f32",
        "rank 1 calls all_reduce(sum) of 1000 i32"}},
      {"another collective",
       [&](ivy_comm* comm, Device& device, int rank, const ivy_call* how) {
         const DeviceArray on(device, std::vector<char>(4'000));
         if (rank == 0) return all_reduce(comm, device, 1000, IVY_F32, how);
         return ivy_broadcast(comm, on.data(), 1000, IVY_F32, 0, how);
       },
       {"rank 0 calls all_reduce(sum) of 1000 f32", "rank 1 calls broadcast of 1000 f32 from"}},
      {"an operation on the host",
       [&](ivy_comm* comm, Device& device, int rank, const ivy_call* how) {
         if (rank == 0) return all_reduce(comm, device, 1000, IVY_F32, how);
         return ivy_barrier(comm, nullptr);
       },
       {"rank 0 calls all_reduce(sum) of 1000 f32", "rank 1 calls barrier"},
       true},
  };
  for (const Hosts& hosts : {one_host(2), host_each(2)}) {
    for (const Third& third : thirds) {
      SCOPED_TRACE(third.name);
      const Shared<std::atomic<int>> reported;
      expect_ok(run_world(hosts, [&](int rank) {
        use_doubles();
        Device device(kCuda, rank);
        World world(seconds(20));
        if (!world) return;
        all_reduce_ones(world, device, 2);
        ivy_call how = call_with_factor(1);
        how.stream = device.make_stream();
        how.flags = IVY_ENQUEUE;
        const DeviceArray on(device, floats(10, 1));
        int code = IVY_OK;
        for (int i = 0; i < 2; ++i) {
          code = ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 10, IVY_F32, IVY_SUM, &how);
          EXPECT_EQ(code, IVY_OK) << ivy_last_error();
        }
        const auto began = monotonic_ms();
        code = third.call(world, device, rank, &how);
        // The next call reports it, whichever that is.
        const auto end = began + scaled_time(seconds(8)).count();
        const bool calls_nothing = rank == 0 && third.is_found_by_rank_1;
        while (code == IVY_OK && calls_nothing && *reported == 0 && monotonic_ms() < end) {
          std::this_thread::sleep_for(milliseconds(10));
        }
        while (code == IVY_OK && monotonic_ms() < end) {
          std::this_thread::sleep_for(milliseconds(10));
          code = ivy_barrier(world, nullptr);
        }
        EXPECT_EQ(code, IVY_ABORTED) << ivy_last_error();
        const std::string text = ivy_last_error();
        for (const std::string& part : third.says) {
          EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
        }
        ++*reported;
        while (*reported < 2) std::this_thread::sleep_for(milliseconds(5));
      }));
    }
  }
}

TEST(NcclTest, NamesRanksLateForAnOperation) {
  const Shared<std::atomic<bool>> is_reported;
  expect_ok(run_world(one_host(2), [&](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    all_reduce_ones(world, device, 2);
    ivy_call how = call_with_timeout(seconds(2));
    const DeviceArray on(device, floats(10, 1));
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 10, IVY_F32, IVY_SUM, &how), IVY_OK);
    if (rank == 1) {
      while (!*is_reported) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    std::this_thread::sleep_for(milliseconds(1'500));
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 10, IVY_F32, IVY_SUM, &how),
              IVY_DEADLINE_EXCEEDED);
    EXPECT_NE(std::string(ivy_last_error()).find("rank 1 has called 1 operation on devices"),
              std::string::npos)
        << ivy_last_error();
    *is_reported = true;
  }));
}

// Every rank calls prepare, and every rank gets this error in time.
struct Rejection {
  const char* name;
  std::function<void(int rank)> before;  // Runs in each rank's process.
  std::vector<std::string> says;
  int code = IVY_FAILED_PRECONDITION;
};

// Gives this process separate mounts.
bool has_own_mounts() {
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

void shrink_shared_memory() {
  EXPECT_TRUE(has_own_mounts());
  EXPECT_EQ(mount("none", "/dev/shm", "tmpfs", 0, "size=1m"), 0);
}

// Pretends to be another host (by its boot id) with an InfiniBand adapter and a low limit of locked
// memory.
void pretend_infiniband() {
  EXPECT_TRUE(has_own_mounts());
  EXPECT_EQ(mount("none", "/sys/class", "tmpfs", 0, nullptr), 0);
  std::filesystem::create_directories("/sys/class/infiniband/mlx5_0");
  std::ofstream("/sys/class/boot_id") << "another\n";
  EXPECT_EQ(
      mount("/sys/class/boot_id", "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr), 0);
  const rlimit little = {64 << 10, 64 << 10};
  setrlimit(RLIMIT_MEMLOCK, &little);
}

void expect_rejection(const Rejection& rejection) {
  SCOPED_TRACE(rejection.name);
  constexpr milliseconds kTimeout = seconds(5);
  expect_ok(run_world(one_host(2), [&](int rank) {
    use_doubles();
    World world(kTimeout);
    if (!world) return;
    rejection.before(rank);
    const auto began = monotonic_ms();
    EXPECT_EQ(ivy_prepare_device(world, rank, nullptr), rejection.code);
    EXPECT_LE(monotonic_ms() - began, scaled_time(kTimeout + seconds(1)).count());
    const std::string text = ivy_last_error();
    for (const std::string& part : rejection.says) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }));
}

TEST(NcclTest, ReportsDriverProblemsOnEveryRank) {
  const Rejection rejections[] = {
      {"no driver",
       [](int rank) {
         if (rank == 1) setenv("IVY_CUDA_LIB", "/no/libcuda.so.1", 1);
       },
       {"rank 1 (", "GPU driver of IVY_CUDA_LIB", "/no/libcuda.so.1", "nvidia-smi"}},
      {"a library that is not a driver",
       [](int rank) {
         if (rank == 1) setenv("IVY_CUDA_LIB", "libm.so.6", 1);
       },
       {"rank 1 (", "libm.so.6 is not a GPU driver", "unset IVY_CUDA_LIB"}},
      {"no such device",
       [](int rank) {
         if (rank == 1) setenv("CUDA_VISIBLE_DEVICES", "3", 1);
         setenv("CUDA_DOUBLE", "devices=1", 1);
       },
       {"rank 1 (", "device 1 does not exist: this process sees 1 device, ",
        "(CUDA_VISIBLE_DEVICES=3)", "by the local rank"}},
      {"driver without device files",
       [](int rank) {
         if (rank == 1) setenv("CUDA_DOUBLE", "no_device", 1);
       },
       {"rank 1 (", "no CUDA-capable device", "/dev/nvidia0", "--gpus"}},
  };
  for (const Rejection& rejection : rejections) expect_rejection(rejection);
}

TEST(NcclTest, ReportsNcclProblemsOnEveryRank) {
  const Rejection rejections[] = {
      {"no library",
       [](int rank) {
         if (rank == 0) setenv("IVY_NCCL_LIB", "/no/libnccl.so.2", 1);
       },
       {"rank 0 (", "IVY_NCCL_LIB cannot be loaded: /no/libnccl.so.2", "pip install"}},
      {"wrong library",
       [](int rank) {
         if (rank == 1) setenv("IVY_NCCL_LIB", kCuda.c_str(), 1);
       },
       {"rank 1 (", "libcuda_double.so is not NCCL", "IVY_NCCL_LIB"}},
      {"missing symbols",
       [](int rank) {
         if (rank == 1) setenv("IVY_NCCL_LIB", (kDoubles + "/libnccl_double_broken.so").c_str(), 1);
       },
       {"rank 1 (", "lacks the function ncclCommAbort", "pip install"}},
      {"too old",
       [](int rank) {
         if (rank == 1) setenv("NCCL_DOUBLE", "version=21304", 1);
       },
       {"rank 1 (", "2.13.4", "older than 2.14"}},
      {"version skew",
       [](int rank) {
         if (rank == 1) setenv("NCCL_DOUBLE", "version=22803", 1);
       },
       {"rank 1 (", "2.28.3", "2.30.7", "would hang", "one version on all hosts"}},
      {"no such interface",
       [](int rank) {
         if (rank == 0) setenv("NCCL_SOCKET_IFNAME", "nosuch0", 1);
       },
       {"rank 0 (", "NCCL_SOCKET_IFNAME=nosuch0 matches no interface", "unset it"}},
      {"divergence",
       [](int rank) {
         if (rank == 1) setenv("NCCL_ALGO", "Ring", 1);
       },
       {"NCCL_ALGO=Ring", "unset", "-x NCCL_ALGO"}},
      {"the comparison",
       [](int rank) {
         if (rank == 1) setenv("IVY_DEVICE_CHECK", "every", 1);
       },
       {"IVY_DEVICE_CHECK=every", "unset"}},
      {"no such comparison",
       [](int rank) {
         if (rank == 1) setenv("IVY_DEVICE_CHECK", "evry", 1);
       },
       {"rank 1 (", "IVY_DEVICE_CHECK=evry is not one of every, lagged, first"}},
      {"init fails",
       [](int) { setenv("NCCL_DOUBLE", "fail_init", 1); },
       {"init: unhandled system error: so says the stand-in"},
       IVY_UNAVAILABLE},
      {"no id",
       [](int) { setenv("NCCL_DOUBLE", "fail_id", 1); },
       {"unique id", "unhandled system error"},
       IVY_INTERNAL},
      {"init hangs",
       [](int rank) {
         if (rank == 1) setenv("NCCL_DOUBLE", "hang_init", 1);
       },
       {"NCCL of communicator world: init timed out: not finished after",
        "NCCL says: so says the stand-in", "also not finished: rank ", " (it is in NCCL's init)"},
       IVY_DEADLINE_EXCEEDED},
  };
  for (const Rejection& rejection : rejections) expect_rejection(rejection);
}

TEST(NcclTest, ReportsDifferentPluginsAndAnOldDriverOnEveryRank) {
  const Rejection rejections[] = {
      {"another network plug-in",
       [](int rank) {
         if (rank == 1) setenv("NCCL_NET_PLUGIN", "libnccl-net-ofi.so", 1);
       },
       {"NCCL_NET_PLUGIN=libnccl-net-ofi.so", "unset", "-x NCCL_NET_PLUGIN"}},
      {"another tuner",
       [](int rank) { setenv("NCCL_TUNER_PLUGIN", rank == 1 ? "a.so" : "b.so", 1); },
       {"NCCL_TUNER_PLUGIN=a.so", "NCCL_TUNER_PLUGIN=b.so", "-x NCCL_TUNER_PLUGIN"}},
      {"a driver too old for one rank's NCCL",
       [](int rank) {
         if (rank == 1) setenv("NCCL_DOUBLE", "old_driver", 1);
       },
       {"init: unhandled cuda error"},
       IVY_UNAVAILABLE},
  };
  for (const Rejection& rejection : rejections) expect_rejection(rejection);
}

TEST(NcclTest, IncludesNcclsWarningInTheError) {
  char folder[] = "/tmp/ivy-nccl-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  expect_rejection({"init hangs and warns",
                    [&](int) {
                      setenv("NCCL_DOUBLE", "hang_init", 1);
                      setenv("NCCL_DEBUG_FILE", (std::string(folder) + "/%p").c_str(), 1);
                    },
                    {"init timed out: not finished after", "; NCCL says: the stand-in hangs"},
                    IVY_DEADLINE_EXCEEDED});
  std::filesystem::remove_all(folder);
}

TEST(NcclTest, ReportsTightHostLimitsOnEveryRank) {
  const pid_t probe = fork();
  if (probe == 0) _exit(has_own_mounts() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(probe, &status, 0), probe);
  if (status != 0) GTEST_SKIP() << "no separate mounts here";
  expect_rejection({"small /dev/shm",
                    [](int rank) {
                      if (rank == 1) shrink_shared_memory();
                    },
                    {"rank 1 (", "/dev/shm has", "2 ranks need 32 MiB", "--shm-size"}});
  expect_rejection({"memlock",
                    [](int rank) {
                      if (rank == 1) pretend_infiniband();
                    },
                    {"rank 1 (", "may lock only 64 KiB", "ulimit -l unlimited"}});
}

TEST(NcclTest, PrintsWarningsAndContinues) {
  const std::vector<RankEnd> ends = run_world(one_host(2), [](int rank) {
    use_doubles();
    World world(seconds(20));
    if (!world) return;
    const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_STACK, &none);
    setenv("IVY_NCCL_PREFLIGHT", "warn", 1);
    if (rank == 1) setenv("NCCL_ALGO", "Ring", 1);
    EXPECT_EQ(ivy_prepare_device(world, rank, nullptr), IVY_OK) << ivy_last_error();
  });
  expect_ok(ends);
  EXPECT_NE(ends[0].output.find("warning: rank 1 ("), std::string::npos) << ends[0].output;
  EXPECT_NE(ends[0].output.find("NCCL_ALGO=Ring"), std::string::npos) << ends[0].output;
}

TEST(NcclTest, RejectsUnsupportedOperationsByNameWithoutStaging) {
  expect_ok(run_world(one_host(2), [](int rank) {
    use_doubles();
    setenv("IVY_NCCL_STAGING", "0", 1);
    Device device(kCuda, rank);
    World world(seconds(20));
    if (!world) return;
    const DeviceArray on(device, std::vector<char>(16));
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 4, IVY_I32, IVY_BXOR, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ivy_last_error()).find("NCCL has no bxor of i32 for all_reduce"),
              std::string::npos)
        << ivy_last_error();
    all_reduce_ones(world, device, 2);
  }));
}

TEST(NcclTest, NamesRanksOnOneGpuUnlessSharedOnPurpose) {
  expect_ok(run_world(one_host(2), [](int) {
    use_doubles(kNccl, "version=22803");
    World world(seconds(10));
    if (!world) return;
    EXPECT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_FAILED_PRECONDITION);
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find("rank 0 ("), std::string::npos) << text;
    EXPECT_NE(text.find("the same GPU 0000:10:00.0 as rank 1 ("), std::string::npos) << text;
    EXPECT_NE(text.find("NCCL_HOSTID"), std::string::npos) << text;
  }));
  for (const bool has_host_ids : {false, true}) {
    expect_ok(run_world(one_host(2), [&](int rank) {
      use_doubles();
      setenv("IVY_OVERSUBSCRIBE", "1", 1);
      if (has_host_ids) setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
      Device device(kCuda, 0);
      World world(seconds(20));
      if (!world) return;
      const ivy_call how = call_with_factor(1);
      compare_with_host(world, device, {IVY_F32, IVY_SUM, 100}, &how);
      EXPECT_EQ(calls_of("ncclAllReduce") > 0, has_host_ids);
    }));
  }
}

// Rank 2 runs `before` in prepare(); the others time out and name it.
void expect_missing(const std::function<void(ivy_comm*)>& before, const std::string& printed) {
  const Shared<std::atomic<int>> reported;
  expect_ok(run_world(one_host(3), [&](int rank) {
    use_doubles();
    World world(seconds(20));
    if (!world) return;
    const ivy_call how = call_with_timeout(seconds(1));
    if (rank == 2) {
      before(world);
    } else {
      EXPECT_EQ(ivy_prepare_device(world, rank, &how), IVY_DEADLINE_EXCEEDED);
      EXPECT_NE(std::string(ivy_last_error()).find(printed), std::string::npos) << ivy_last_error();
      EXPECT_EQ(last_failure().rank, 2) << ivy_last_error();
    }
    ++*reported;
    while (*reported < 3) std::this_thread::sleep_for(milliseconds(10));
  }));
}

TEST(NcclTest, NamesAMissingRankWithItsProgress) {
  // It does not call at all: the rendezvous before the ready barrier names it.
  expect_missing([](ivy_comm*) {}, "rank 2");
  expect_missing(
      [](ivy_comm* world) {
        setenv("CUDA_DOUBLE", "hang_call=cuInit", 1);
        const ivy_call how = call_with_timeout(seconds(1));
        EXPECT_EQ(ivy_prepare_device(world, 2, &how), IVY_DEADLINE_EXCEEDED);
      },
      "ready barrier: rank 2 (");
}

// World ranks 2 and 3 form a group that NCCL does not split from the world's communicator.
TEST(NcclTest, NamesRanksOfAGroupByTheirWorldRank) {
  expect_ok(run_world(one_host(4), [](int rank) {
    use_doubles();
    World world(seconds(20));
    if (!world) return;
    const std::int32_t ranks[] = {2, 3};
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_group(world, ranks, 2, &group), IVY_OK) << ivy_last_error();
    ivy_comm* other = nullptr;
    ASSERT_EQ(ivy_comm_group(world, ranks, 2, &other), IVY_OK) << ivy_last_error();
    if (rank < 2) return;
    if (rank == 3) setenv("CUDA_DOUBLE", "no_device", 1);
    EXPECT_EQ(ivy_prepare_device(group, rank, nullptr), IVY_FAILED_PRECONDITION);
    EXPECT_NE(std::string(ivy_last_error()).find(": rank 3 ("), std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 3) << ivy_last_error();
    if (rank == 3) setenv("CUDA_DOUBLE", "hang_call=cuInit", 1);
    const ivy_call how = call_with_timeout(seconds(1));
    EXPECT_EQ(ivy_prepare_device(other, rank, &how), IVY_DEADLINE_EXCEEDED);
    EXPECT_NE(std::string(ivy_last_error()).find("ready barrier: rank 3 ("), std::string::npos)
        << ivy_last_error();
    EXPECT_NE(std::string(ivy_last_error()).find("(it loads the driver and NCCL)"),
              std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 3) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
