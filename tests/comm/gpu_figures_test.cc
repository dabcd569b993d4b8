// SPDX-License-Identifier: Apache-2.0
// The costs of collectives on a real GPU, next to NCCL's own calls. They print figures and check no
// limits. Lines that start with "figure:" are listed in tests/bench/figures.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/driver.h"
#include "tests/comm/gpu_worlds.h"

namespace ivy::comm::test {
namespace {

class GpuFigures : public GpuTest {};
class SharedGpuFigures : public SharedGpuTest {};

constexpr std::size_t kMiB = 1 << 20;

void say_versions() {
  const Result<const nccl::Driver*> driver = nccl::Driver::load();
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  const nccl::Library& library = **nccl::Library::load();
  int (*name_of)(char*, int, int) = nullptr;
  void* const handle = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  name_of = reinterpret_cast<decltype(name_of)>(dlsym(handle, "cuDeviceGetName"));
  char name[128] = "a GPU without a name";
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

// Makes an NCCL communicator in the same way as libivycomm.
nccl::Handle make_plain(const nccl::Functions& functions, const nccl::UniqueId& id, int ranks,
                        int rank) {
  static nccl::Config config;
  static nccl::Handle handle = nullptr;  // NCCL may write to it again later.
  nccl::Status status = functions.init_rank_config(&handle, ranks, id, rank, &config);
  while (status == nccl::kInProgress) functions.get_async_error(handle, &status);
  EXPECT_EQ(status, nccl::kSuccess);
  return handle;
}

// An ivycomm communicator and a plain NCCL communicator on one stream.
struct Pair {
  ivy_comm* world;
  Device& device;
  nccl::Handle plain;
  void* stream;
  // Ranks that share a GPU take turns of some milliseconds each, so they make fewer calls.
  bool takes_turns = false;

  void settle(nccl::Status status) const {
    const nccl::Functions& functions = (*nccl::Library::load())->functions();
    while (status == nccl::kInProgress) functions.get_async_error(plain, &status);
    EXPECT_EQ(status, nccl::kSuccess);
  }
};

struct Buffers {
  const void* from;
  void* to;
  std::size_t bytes;  // Of one rank's part.
};

enum class Kind { kAllReduce, kAllGather, kReduceScatter };
const char* name_of(Kind kind) {
  if (kind == Kind::kAllReduce) return "all_reduce";
  return kind == Kind::kAllGather ? "all_gather" : "reduce_scatter";
}

void call_ours(const Pair& pair, Kind kind, const Buffers& with, const ivy_call& how) {
  const std::size_t count = with.bytes / 4;
  int code = IVY_OK;
  if (kind == Kind::kAllReduce) {
    code = ivy_all_reduce(pair.world, with.from, with.to, count, IVY_F32, IVY_SUM, &how);
  } else if (kind == Kind::kAllGather) {
    code = ivy_all_gather(pair.world, with.from, with.to, count, IVY_F32, &how);
  } else {
    code = ivy_reduce_scatter(pair.world, with.from, with.to, count, IVY_F32, IVY_SUM, &how);
  }
  ASSERT_EQ(code, IVY_OK) << ivy_last_error();
}

void call_plain(const Pair& pair, Kind kind, const Buffers& with, void* stream) {
  const nccl::Functions& nccl = (*nccl::Library::load())->functions();
  const std::size_t count = with.bytes / 4;
  constexpr nccl::Element kType = nccl::Element::kF32;
  if (kind == Kind::kAllReduce) {
    pair.settle(nccl.all_reduce(with.from, with.to, count, kType, 0, pair.plain, stream));
  } else if (kind == Kind::kAllGather) {
    pair.settle(nccl.all_gather(with.from, with.to, count, kType, pair.plain, stream));
  } else {
    pair.settle(nccl.reduce_scatter(with.from, with.to, count, kType, 0, pair.plain, stream));
  }
}

// Microseconds of a call alone, and of a call with its work on the device.
struct Cost {
  double call;
  double whole;
};

// Collects rounds of one kind of call.
class Rounds {
 public:
  Rounds(const Pair& pair, int calls, std::function<void()> call)
      : pair_(pair), calls_(calls), call_(std::move(call)) {
    call_();
    pair_.device.synchronize(pair_.stream);
  }
  void run() {
    const auto began = std::chrono::steady_clock::now();
    each_.push_back(microseconds_each(calls_, call_));
    pair_.device.synchronize(pair_.stream);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    whole_.push_back(took.count() / calls_);
  }
  Cost medians() {
    const std::size_t middle = each_.size() / 2;
    std::sort(each_.begin(), each_.end());
    std::sort(whole_.begin(), whole_.end());
    return {each_[middle], whole_[middle]};
  }

 private:
  const Pair& pair_;
  const int calls_;
  const std::function<void()> call_;
  std::vector<double> each_;
  std::vector<double> whole_;
};

// Rounds alternate between the two, because the processor's clock and other load vary over time.
std::pair<Cost, Cost> costs_of(const Pair& pair, int calls, const std::function<void()>& ours,
                               const std::function<void()>& plain) {
  const int rounds = pair.takes_turns ? 3 : 9;
  Rounds by_us(pair, calls, ours);
  Rounds by_nccl(pair, calls, plain);
  for (int round = 0; round < rounds; ++round) {
    by_us.run();
    by_nccl.run();
  }
  return {by_us.medians(), by_nccl.medians()};
}

// Returns the additional time of a call over NCCL's: the median of the differences between each
// call and the NCCL call after it. If ranks take turns on a GPU, a call sometimes waits for a turn,
// and the processor's speed varies during a row. That would dominate a mean or a difference of
// medians.
double more_in_turn(const Pair& pair, int calls, const std::function<void()>& ours,
                    const std::function<void()>& plain) {
  std::vector<double> more;
  for (int i = 0; i < calls; ++i) {
    const double by_us = microseconds_each(1, ours);
    more.push_back(by_us - microseconds_each(1, plain));
  }
  pair.device.synchronize(pair.stream);
  std::sort(more.begin(), more.end());
  return more[more.size() / 2];
}

// A call that returns once it is enqueued, like one of a framework, which knows its devices.
ivy_call enqueued(const Pair& pair) {
  ivy_call how = call_with_factor(1);
  how.flags = IVY_ENQUEUE | IVY_ON_DEVICE;
  how.stream = pair.stream;
  return how;
}

void compare_kind(const Pair& pair, Kind kind, std::size_t most) {
  const auto size = static_cast<std::size_t>(ivy_comm_size(pair.world));
  const DeviceArray from(pair.device,
                         std::vector<char>(kind == Kind::kReduceScatter ? most * size : most));
  const DeviceArray to(pair.device,
                       std::vector<char>(kind == Kind::kAllGather ? most * size : most));
  const ivy_call how = enqueued(pair);
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 8; bytes < most; bytes *= 32) sizes.push_back(bytes);
  sizes.push_back(most);
  for (const std::size_t bytes : sizes) {
    const Buffers with{from.data(), to.data(), bytes};
    const bool is_large = bytes >= 64 * kMiB;
    int calls = is_large ? 10 : bytes >= kMiB ? 40 : 200;
    if (pair.takes_turns) calls /= is_large ? 10 : 4;
    const auto call = [&] { call_ours(pair, kind, with, how); };
    const auto call_nccl = [&] { call_plain(pair, kind, with, pair.stream); };
    const auto [ours, plain] = costs_of(pair, calls, call, call_nccl);
    // As many as the device executes in a few seconds. The same number on both ranks, which call in
    // turn.
    const int turns = !pair.takes_turns    ? 201
                      : bytes < 8 * kMiB   ? 101
                      : bytes < 256 * kMiB ? 61
                                           : 21;
    std::printf(
        "figure: %s ranks %zu bytes %zu: call %.2f us, NCCL alone %.2f us, in turn %.2f us more; "
        "with the device %.2f us, NCCL alone %.2f us, ratio %.3f\n",
        name_of(kind), size, bytes, ours.call, plain.call,
        more_in_turn(pair, turns, call, call_nccl), ours.whole, plain.whole,
        ours.whole / plain.whole);
  }
}

// More operations in a row than may run ahead of the device (IVY_DEVICE_AHEAD), so that the call
// waits for it.
void compare_long_row(const Pair& pair) {
  constexpr int kRow = 20'000;
  const DeviceArray from(pair.device, std::vector<char>(8));
  const DeviceArray to(pair.device, std::vector<char>(8));
  const Buffers with{from.data(), to.data(), 8};
  const ivy_call how = enqueued(pair);
  const auto [ours, plain] = costs_of(
      pair, kRow, [&] { call_ours(pair, Kind::kAllReduce, with, how); },
      [&] { call_plain(pair, Kind::kAllReduce, with, pair.stream); });
  std::printf(
      "figure: %d all_reduces of 8 bytes in a row, ranks %d: ours %.2f us each, NCCL alone "
      "%.2f us\n",
      kRow, ivy_comm_size(pair.world), ours.whole, plain.whole);
}

// Eight buckets like those of DDP: the device computes (copies), and each finished bucket is
// reduced while the next one is computed.
void compare_overlap(const Pair& pair) {
  constexpr int kBuckets = 8;
  constexpr std::size_t kBucket = 16 * kMiB;
  constexpr std::size_t kComputed = 256 * kMiB;
  const nccl::Driver& driver = **nccl::Driver::load();
  const DeviceArray scratch(pair.device, std::vector<char>(2 * kComputed));
  const DeviceArray from(pair.device, std::vector<char>(kBucket));
  const DeviceArray to(pair.device, std::vector<char>(kBucket));
  const auto compute = [&] {
    ASSERT_TRUE(
        driver.copy_on_device(scratch.data(), scratch.data() + kComputed, kComputed, pair.stream)
            .ok());
  };
  const Buffers with{from.data(), to.data(), kBucket};
  const auto ours = [&] {
    ivy_work* works[kBuckets] = {};
    for (ivy_work*& work : works) {
      compute();
      ivy_call how = call_with_factor(1);
      how.stream = pair.stream;
      how.work = &work;
      call_ours(pair, Kind::kAllReduce, with, how);
    }
    for (ivy_work* const work : works) {
      ASSERT_EQ(ivy_work_hold_back(work, pair.stream), IVY_OK) << ivy_last_error();
    }
    pair.device.synchronize(pair.stream);
    for (ivy_work* const work : works) ivy_work_free(work);
  };
  void* const side = pair.device.make_stream();
  const nccl::Event event = *driver.make_event();
  const auto plain = [&] {
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      compute();
      ASSERT_TRUE(driver.record(event, pair.stream).ok());
      ASSERT_TRUE(driver.wait(side, event).ok());
      call_plain(pair, Kind::kAllReduce, with, side);
    }
    ASSERT_TRUE(driver.record(event, side).ok());
    ASSERT_TRUE(driver.wait(pair.stream, event).ok());
    pair.device.synchronize(pair.stream);
  };
  ours();
  plain();
  const double by_us = median_of_nine([&] { return microseconds_each(1, ours); });
  const double by_nccl = median_of_nine([&] { return microseconds_each(1, plain); });
  std::printf(
      "figure: 8 buckets beside computing, ranks %d: ours %.0f us, NCCL alone %.0f us, ratio "
      "%.3f\n",
      ivy_comm_size(pair.world), by_us, by_nccl, by_us / by_nccl);
}

void compare_graphs(const Pair& pair) {
  const Graphs graphs(pair.device);
  const DeviceArray from(pair.device, std::vector<char>(4096));
  const DeviceArray to(pair.device, std::vector<char>(4096));
  const Buffers with{from.data(), to.data(), 4096};
  const ivy_call how = enqueued(pair);
  void* made[2] = {};
  for (const bool is_ours : {true, false}) {
    void* graph = nullptr;
    ASSERT_EQ(graphs.begin(pair.stream, 0), 0);
    for (int i = 0; i < 10; ++i) {
      if (is_ours) call_ours(pair, Kind::kAllReduce, with, how);
      if (!is_ours) call_plain(pair, Kind::kAllReduce, with, pair.stream);
    }
    ASSERT_EQ(graphs.end(pair.stream, &graph), 0);
    ASSERT_EQ(graphs.instantiate(&made[is_ours ? 0 : 1], graph, 0), 0);
  }
  const auto launch = [&](int which) { ASSERT_EQ(graphs.launch(made[which], pair.stream), 0); };
  const auto [ours, plain] = costs_of(
      pair, 1000, [&] { launch(0); }, [&] { launch(1); });
  std::printf(
      "figure: a graph of 10 all_reduces, again and again, ranks %d: ours %.2f us each, NCCL alone "
      "%.2f us\n",
      ivy_comm_size(pair.world), ours.whole, plain.whole);
}

// Measures the driver calls that each of our calls makes in addition to NCCL's.
void say_what_the_driver_takes(const Pair& pair) {
  const nccl::Driver& driver = **nccl::Driver::load();
  const DeviceArray memory(pair.device, std::vector<char>(4096));
  const nccl::Event event = *driver.make_event();
  const auto each = [](const std::function<void()>& call) {
    return median_of_nine([&] { return microseconds_each(500, call); });
  };
  const double attributes = each([&] { driver.device_memory(memory.data()); });
  const double of_device = each([&] { driver.is_of_device(pair.stream, 0); });
  const double capturing = each([&] { driver.is_capturing(pair.stream); });
  const double current = each([&] { const nccl::Driver::Current one(driver, 0); });
  const double recorded = each([&] { ASSERT_TRUE(driver.record(event, pair.stream).ok()); });
  pair.device.synchronize(pair.stream);
  const double asked = each([&] { ASSERT_TRUE(driver.is_done(event).ok()); });
  std::printf(
      "figure: the driver takes: attributes of a pointer %.2f us, the stream's device %.2f us, "
      "whether it is captured %.2f us, this thread's device %.2f us, an event recorded %.2f us, "
      "and asked for %.2f us\n",
      attributes, of_device, capturing, current, recorded, asked);
}

void compare_everything(ivy_comm* world, Device& device, nccl::Handle plain) {
  const Pair pair{world, device, plain, device.make_stream()};
  say_what_the_driver_takes(pair);
  for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter}) {
    compare_kind(pair, kind, 1024 * kMiB);
  }
  compare_long_row(pair);
  compare_overlap(pair);
  compare_graphs(pair);
}

// Measures NCCL's init in a separate process.
TEST_F(GpuFigures, MeasuresInit) {
  for (const bool is_ours : {false, true, false, true}) {
    const std::vector<RankEnd> ends = run_world(
        one_host(1),
        [&](int) {
          setenv("IVY_NCCL_TIMES", "1", 1);
          Device device(kDriver, 0);
          ASSERT_TRUE(device.is_available());
          World world(seconds(120));
          if (!world) return;
          const auto began = std::chrono::steady_clock::now();
          if (is_ours) {
            ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
          } else {
            const nccl::Functions& functions = (*nccl::Library::load())->functions();
            nccl::UniqueId id = {};
            ASSERT_EQ(functions.get_unique_id(&id), nccl::kSuccess);
            make_plain(functions, id, 1, 0);
          }
          const std::chrono::duration<double, std::milli> took =
              std::chrono::steady_clock::now() - began;
          std::printf("figure: init of a world of one in a new process, %s: %.0f ms\n",
                      is_ours ? "ours" : "NCCL alone", took.count());
        },
        long_timeout());
    expect_ok(ends);
    std::printf("%s", ends[0].output.c_str());
  }
}

TEST_F(GpuFigures, MeasuresTheOverheadOverNccl) {
  const std::vector<RankEnd> ends = run_world(
      one_host(1),
      [](int) {
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        say_versions();
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const nccl::Functions& functions = (*nccl::Library::load())->functions();
        nccl::UniqueId id = {};
        ASSERT_EQ(functions.get_unique_id(&id), nccl::kSuccess);
        const nccl::Handle plain = make_plain(functions, id, 1, 0);
        compare_everything(world, device, plain);
        functions.abort(plain);
      },
      long_timeout());
  expect_ok(ends);
  std::printf("%s", ends[0].output.c_str());
}

// Both ranks run on one GPU, in turns, so the difference is the processor's part.
TEST_P(SharedGpuFigures, MeasuresTheOverheadOverNcclForTwoRanks) {
  struct Reported {
    std::atomic<bool> is_available{false};
    nccl::UniqueId id;
  };
  const Shared<Reported> reported;
  const std::vector<RankEnd> ends = run_world(
      one_host(2),
      [&](int rank) {
        share_gpu(rank, GetParam(), 8);
        Device device(kDriver, 0);
        ASSERT_TRUE(device.is_available());
        World world(seconds(120));
        if (!world) return;
        ASSERT_EQ(ivy_prepare_device(world, 0, nullptr), IVY_OK) << ivy_last_error();
        const nccl::Functions& functions = (*nccl::Library::load())->functions();
        if (rank == 0) {
          ASSERT_EQ(functions.get_unique_id(&reported->id), nccl::kSuccess);
          reported->is_available = true;
        }
        while (!reported->is_available) std::this_thread::sleep_for(milliseconds(1));
        const nccl::Handle plain = make_plain(functions, reported->id, 2, rank);
        const Pair pair{world, device, plain, device.make_stream(), true};
        // Up to 1 GiB in total if NCCL knows that they share the GPU; otherwise it uses sockets.
        const std::size_t most = GetParam() == Way::kMultiRank ? 1024 * kMiB : 8 * kMiB;
        compare_kind(pair, Kind::kAllReduce, most);
        compare_kind(pair, Kind::kAllGather, std::min(most, 512 * kMiB));
        compare_kind(pair, Kind::kReduceScatter, std::min(most, 512 * kMiB));
        ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
        functions.abort(plain);
      },
      long_timeout());
  expect_ok(ends);
  std::printf("%s", ends[0].output.c_str());
}

INSTANTIATE_TEST_SUITE_P(BothWays, SharedGpuFigures,
                         ::testing::Values(Way::kMultiRank, Way::kTwoHosts), name_of_way);

}  // namespace
}  // namespace ivy::comm::test
