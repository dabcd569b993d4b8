// SPDX-License-Identifier: Apache-2.0
// Several threads of a rank on one communicator: their calls are executed one at a time. The
// library cannot order the threads, so if their calls differ, ranks may match different ones. Then
// every rank gets an error, and only the buffers of those calls have been touched.
#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

constexpr int kCallers = 4;

class CallersTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CallersTest,
                         ::testing::Values(one_host(2), one_host(3), host_each(2), Hosts{2, 1}),
                         [](const auto& world) { return hosts_text(world.param); });

// Memory with guards on both sides.
class Guarded {
 public:
  Guarded(std::size_t count, float value) : floats_(count + 2 * kMargin, kUntouched) {
    fill(value);
  }
  void fill(float value) { std::fill(floats_.begin() + kMargin, floats_.end() - kMargin, value); }
  float* data() { return floats_.data() + kMargin; }
  std::size_t count() const { return floats_.size() - 2 * kMargin; }
  bool is_all(float value) const {
    return std::all_of(floats_.begin() + kMargin, floats_.end() - kMargin,
                       [value](float one) { return one == value; });
  }
  bool is_margin_whole() const {
    const auto is_untouched = [](float one) { return one == kUntouched; };
    return std::all_of(floats_.begin(), floats_.begin() + kMargin, is_untouched) &&
           std::all_of(floats_.end() - kMargin, floats_.end(), is_untouched);
  }

 private:
  static constexpr std::ptrdiff_t kMargin = 4096;
  static constexpr float kUntouched = -77;
  std::vector<float> floats_;
};

// Returns 1 + 2 + ... + size.
float sum_of_ranks(ivy_comm* comm) {
  const auto size = static_cast<float>(ivy_comm_size(comm));
  return size * (size + 1) / 2;
}

// Makes `calls` calls. Returns the code of the first failure, or IVY_OK.
int call_repeatedly(ivy_comm* comm, std::size_t count, int calls) {
  const auto own = static_cast<float>(ivy_comm_rank(comm) + 1);
  Guarded buffer(count, own);
  for (int call = 0; call < calls; ++call) {
    buffer.fill(own);
    const int code =
        ivy_all_reduce(comm, IVY_IN_PLACE, buffer.data(), count, IVY_F32, IVY_SUM, nullptr);
    EXPECT_TRUE(buffer.is_margin_whole());
    if (code != IVY_OK) return code;
    EXPECT_TRUE(buffer.is_all(sum_of_ranks(comm))) << call;
  }
  return IVY_OK;
}

TEST_P(CallersTest, ReturnsTheResultsOfEqualConcurrentCalls) {
  struct Size {
    std::size_t count;
    int calls;
  };
  for (const Size& size : {Size{7, 100}, Size{20'000, 30}, Size{300'000, 6}}) {
    SCOPED_TRACE(size.count);
    expect_ok(run_world(GetParam(), [&](int) {
      const World world;
      ASSERT_TRUE(world);
      std::vector<std::thread> callers;
      for (int caller = 0; caller < kCallers; ++caller)
        callers.emplace_back([&] {
          EXPECT_EQ(call_repeatedly(world, size.count, size.calls), IVY_OK) << ivy_last_error();
        });
      for (std::thread& caller : callers) caller.join();
    }));
  }
}

// Each thread has its own size, so that the entry, the eager areas and the slots are all used.
TEST_P(CallersTest, DifferentConcurrentCallsSucceedOrAbort) {
  constexpr std::array<std::size_t, kCallers> kCounts = {5, 3'000, 40'000, 300'000};
  for (int round = 0; round < 6; ++round) {
    expect_ok(run_world(GetParam(), [&](int) {
      const World world(seconds(20));
      ASSERT_TRUE(world);
      std::array<int, kCallers> codes = {};
      std::vector<std::thread> callers;
      for (std::size_t caller = 0; caller < kCounts.size(); ++caller)
        callers.emplace_back([&, caller] {
          codes[caller] = call_repeatedly(world, kCounts[caller], 20);
          EXPECT_TRUE(codes[caller] == IVY_OK || codes[caller] == IVY_ABORTED)
              << codes[caller] << ": " << ivy_last_error();
        });
      for (std::thread& caller : callers) caller.join();
      // The error repeats in later calls.
      const bool is_broken = std::find(codes.begin(), codes.end(), IVY_ABORTED) != codes.end();
      if (is_broken) {
        EXPECT_EQ(ivy_barrier(world, nullptr), IVY_ABORTED) << ivy_last_error();
      }
    }));
  }
}

}  // namespace
}  // namespace ivy::comm::test
