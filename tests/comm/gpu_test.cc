// NCCL's part of libivycomm on a real GPU. Where there is none, every test is skipped with its
// reason. Ranks that share a GPU take turns on it: right or wrong shows, speed does not.
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
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// The stand-in's path, where these tests themselves are tried.
const char* const kNamedDriver = std::getenv("IVY_CUDA_LIB");
const char* const kDriver = kNamedDriver != nullptr ? kNamedDriver : "libcuda.so.1";

// Why nothing can be tested here; empty: it can.
std::string what_is_missing() {
  if (kNamedDriver == nullptr && access("/dev/nvidiactl", F_OK) != 0)
    return "there is no GPU: no /dev/nvidiactl";
  void* const driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::string("there is no driver: ") + dlerror();
  const Result<const nccl::Library*> library = nccl::Library::load();
  return library.ok() ? "" : library.error().message;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = what_is_missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

// The two ways in which NCCL lets ranks share a GPU: openly, or as if they were on two hosts.
enum class Way { kMultiRank, kTwoHosts };

class SharedGpuTest : public GpuTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || GetParam() == Way::kTwoHosts) return;
    const int version = (*nccl::Library::load())->version();
    if (version < nccl::kMultiRank)
      GTEST_SKIP() << "NCCL " << nccl::version_text(version)
                   << " has no NCCL_MULTI_RANK_GPU_ENABLE, which came with 2.30";
  }
};

void share_gpu(int rank, Way way) {
  setenv("NCCL_MAX_CTAS", "2", 1);
  setenv("IVY_NCCL_TIMES", "1", 1);  // Init by phases, on standard error.
  if (way == Way::kMultiRank) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    return;
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  // Between such hosts sockets do; adapters of a shared machine are not ours to try.
  setenv("NCCL_IB_DISABLE", "1", 1);
}

ivy_call call_with_factor(double factor) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.factor = factor;
  return call;
}

WorldOptions patient() {
  WorldOptions options;
  options.deadline = seconds(180);  // The first context and NCCL's kernels take many seconds.
  return options;
}

TEST_F(GpuTest, AWorldOfOneDoesEveryCollective) {
  expect_well(run_world(
      one_host(1),
      [](int) {
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_there());
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
      patient()));
}

TEST_P(SharedGpuTest, TwoRanksGiveWhatTheHostGives) {
  for (const bool is_enqueued : {false, true}) {
    const std::vector<RankEnd> ends = run_world(
        one_host(2),
        [&](int rank) {
          share_gpu(rank, GetParam());
          Device device(kDriver, 0);
          ASSERT_TRUE(device.is_there());
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
        patient());
    expect_well(ends);
    std::printf("%s", ends[0].output.c_str());
  }
}

struct Board {
  std::atomic<std::int64_t> died_ms{0};
};

void run_until_killed(int rank, Way way, Board& board) {
  share_gpu(rank, way);
  Device device(kDriver, 0);
  ASSERT_TRUE(device.is_there());
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

TEST_P(SharedGpuTest, AKilledRankIsNamedAndTheGpuIsFreed) {
  const Shared<Board> board;
  const std::vector<RankEnd> ends = run_world(
      one_host(2), [&](int rank) { run_until_killed(rank, GetParam(), *board); }, patient());
  expect_well(ends, 1);
  std::printf("%s", ends[0].output.c_str());
}

TEST_P(SharedGpuTest, AnAbortEndsAnOperationThatNobodyAnswers) {
  expect_well(run_world(
      one_host(2),
      [](int rank) {
        share_gpu(rank, GetParam());
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_there());
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
      patient()));
}

INSTANTIATE_TEST_SUITE_P(BothWays, SharedGpuTest,
                         ::testing::Values(Way::kMultiRank, Way::kTwoHosts),
                         [](const auto& tested) {
                           return tested.param == Way::kMultiRank ? "MultiRank" : "TwoHosts";
                         });

// ---- Figures ------------------------------------------------------------------------------------

void say_versions() {
  const Result<const nccl::Driver*> driver = nccl::Driver::load();
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  const nccl::Library& library = **nccl::Library::load();
  int (*name_of)(char*, int, int) = nullptr;
  void* const handle = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  name_of = reinterpret_cast<decltype(name_of)>(dlsym(handle, "cuDeviceGetName"));
  char name[128] = "a GPU that does not say its name";
  if (name_of != nullptr) name_of(name, sizeof name - 1, 0);
  std::printf("figure: on %s; driver for CUDA %d.%d; NCCL %s (%s)\n", name,
              (*driver)->version() / 1'000, (*driver)->version() % 1'000 / 10,
              nccl::version_text(library.version()).c_str(), library.path().c_str());
}

double microseconds_each(int calls, const std::function<void()>& call) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
  return took.count() / calls;
}

double median_of_nine(const std::function<double()>& measure) {
  std::vector<double> all;
  for (int i = 0; i < 9; ++i) all.push_back(measure());
  std::nth_element(all.begin(), all.begin() + 4, all.end());
  return all[4];
}

// A communicator of NCCL itself, made as libivycomm makes its own.
nccl::Handle make_plain(const nccl::Functions& functions, const nccl::UniqueId& id, int ranks,
                        int rank) {
  static nccl::Config config;
  static nccl::Handle handle = nullptr;  // NCCL may write to it once more, later.
  nccl::Status status = functions.init_rank_config(&handle, ranks, id, rank, &config);
  while (status == nccl::kInProgress) functions.get_async_error(handle, &status);
  EXPECT_EQ(status, nccl::kSuccess);
  return handle;
}

// The same calls by our way and by NCCL's own; every rank makes them.
void compare_calls(ivy_comm* world, Device& device, nccl::Handle plain) {
  const nccl::Functions& functions = (*nccl::Library::load())->functions();
  const DeviceArray on(device, std::vector<char>(4096));
  ivy_call how = call_with_factor(1);
  how.flags = IVY_ENQUEUE;
  how.stream = device.make_stream();
  constexpr int kCalls = 500;
  const double ours = median_of_nine([&] {
    const double each = microseconds_each(kCalls, [&] {
      ivy_all_reduce(world, IVY_IN_PLACE, on.data(), 1024, IVY_F32, IVY_SUM, &how);
    });
    device.synchronize(how.stream);
    return each;
  });
  const double theirs = median_of_nine([&] {
    const double each = microseconds_each(kCalls, [&] {
      nccl::Status status = functions.all_reduce(on.data(), on.data(), 1024, nccl::Element::kF32, 0,
                                                 plain, how.stream);
      while (status == nccl::kInProgress) functions.get_async_error(plain, &status);
    });
    device.synchronize(how.stream);
    return each;
  });
  std::printf(
      "figure: enqueueing all_reduce of 4 KiB, ranks: %d: ours %.2f us, NCCL's own %.2f us, "
      "difference %.2f us\n",
      ivy_comm_size(world), ours, theirs, ours - theirs);
}

TEST_F(GpuTest, CallsCostLittleMoreThanNcclsOwn) {
  const std::vector<RankEnd> ends = run_world(
      one_host(1),
      [](int) {
        setenv("IVY_NCCL_TIMES", "1", 1);
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_there());
        say_versions();
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const nccl::Functions& functions = (*nccl::Library::load())->functions();
        nccl::UniqueId id = {};
        ASSERT_EQ(functions.get_unique_id(&id), nccl::kSuccess);
        const nccl::Handle plain = make_plain(functions, id, 1, 0);
        compare_calls(world, device, plain);
        functions.abort(plain);
      },
      patient());
  expect_well(ends);
  std::printf("%s", ends[0].output.c_str());
}

// Both ranks' work is on one GPU, in turns: the difference is the processors' part.
TEST_P(SharedGpuTest, CallsOfTwoRanksCostLittleMoreThanNcclsOwn) {
  struct Told {
    std::atomic<bool> is_there{false};
    nccl::UniqueId id;
  };
  const Shared<Told> told;
  const std::vector<RankEnd> ends = run_world(
      one_host(2),
      [&](int rank) {
        share_gpu(rank, GetParam());
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_there());
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const nccl::Functions& functions = (*nccl::Library::load())->functions();
        if (rank == 0) {
          ASSERT_EQ(functions.get_unique_id(&told->id), nccl::kSuccess);
          told->is_there = true;
        }
        while (!told->is_there) std::this_thread::sleep_for(milliseconds(1));
        const nccl::Handle plain = make_plain(functions, told->id, 2, rank);
        compare_calls(world, device, plain);
        ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
        functions.abort(plain);
      },
      patient());
  expect_well(ends);
  std::printf("%s", ends[0].output.c_str());
}

}  // namespace
}  // namespace ivy::comm::test
