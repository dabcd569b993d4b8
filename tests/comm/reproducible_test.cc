// SPDX-License-Identifier: Apache-2.0
// Two jobs in separate processes give the same bytes, whichever ranks are late, whichever buffers
// are registered, and for any number of connections. One host gives the same bytes as equally many
// hosts with a rank each, which combine in the same order (host_collectives.h).
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/comm/matrix_data.h"

namespace ivy::comm::test {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF16,    Dtype::kBf16, Dtype::kF8E4m3,
                             Dtype::kF8E5m2, Dtype::kF32,  Dtype::kF64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum};
// Counts for the entry, the eager area, and several slots or pieces.
constexpr std::size_t kCounts[] = {3, 3001, 70'001};
constexpr std::size_t kMax = kCounts[2];
constexpr std::size_t kOperations = 4;
constexpr std::size_t kResults =
    std::size(kDtypes) * std::size(kOps) * std::size(kCounts) * kOperations;
constexpr int kRanks = 4;

struct Hashes {
  std::uint64_t of[kRanks][kResults] = {};
};

// The conditions of a run, which must not change results.
struct Manner {
  std::uint32_t lateness;
  bool is_registered;
  const char* streams;
};
constexpr Manner kManners[] = {{1, false, "1"}, {2, false, "1"}, {3, true, "3"}};

std::uint64_t hash_of(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * 0x100000001b3U;
  return hash;
}

// The results of one rank, in order.
class Job {
 public:
  Job(ivy_comm* world, const Manner& manner, std::uint64_t* hashes)
      : world_(world), manner_(manner), hashes_(hashes) {
    call_.struct_bytes = sizeof call_;
    call_.factor = factor_of(ivy_comm_rank(world));
  }

  void run() {
    for (const Dtype dtype : kDtypes) {
      const std::size_t bytes = kMax * element_bytes(dtype);
      Memory send(bytes);
      Memory receive(bytes);
      const Bytes input = input_of(ivy_comm_rank(world_), {dtype, ReduceOp::kSum, 5}, kMax);
      std::copy(input.begin(), input.end(), send.data());
      for (const ReduceOp op : kOps) {
        for (const std::size_t count : kCounts) run_operations(send, receive, dtype, op, count);
      }
    }
  }

 private:
  void run_operations(Memory& send, Memory& receive, Dtype dtype, ReduceOp op, std::size_t count) {
    const int type = static_cast<int>(dtype);
    const int how = static_cast<int>(op);
    const std::size_t bytes = count * element_bytes(dtype);
    const int rank = ivy_comm_rank(world_);
    const std::size_t each = count / kRanks;
    come_late();
    keep(ivy_all_reduce(world_, send.data(), receive.data(), count, type, how, &call_), receive,
         bytes);
    come_late();
    keep(ivy_reduce(world_, send.data(), receive.data(), count, type, how, 1, &call_), receive,
         rank == 1 ? bytes : 0);
    come_late();
    keep(ivy_reduce_scatter(world_, send.data(), receive.data(), each, type, how, &call_), receive,
         each * element_bytes(dtype));
    come_late();
    keep(ivy_scan(world_, send.data(), receive.data(), count, type, how, &call_), receive, bytes);
  }

  // Delays some ranks by up to 200 µs.
  void come_late() {
    const std::uint32_t bits =
        mix(manner_.lateness * 7919 + static_cast<std::uint32_t>(done_) * 16 +
            static_cast<std::uint32_t>(ivy_comm_rank(world_)));
    if (bits % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits / 4 % 200));
  }

  void keep(int code, Memory& result, std::size_t bytes) {
    ASSERT_EQ(code, IVY_OK) << ivy_last_error();
    hashes_[done_++] = hash_of(result.data(), bytes);
  }

  ivy_comm* const world_;
  const Manner manner_;
  std::uint64_t* const hashes_;
  ivy_call call_ = {};
  std::size_t done_ = 0;
};

void run_job(const Hosts& hosts, const Manner& manner, Hashes& hashes) {
  expect_ok(run_world(hosts, [&](int rank) {
    setenv("IVY_TCP_STREAMS", manner.streams, 1);
    const World world;
    ASSERT_TRUE(world);
    registration() = {manner.is_registered ? Registered::kAll : Registered::kNone, world};
    Job(world, manner, hashes.of[rank]).run();
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

// Describes the first result that differs.
std::string difference(const Hashes& one, const Hashes& other) {
  constexpr const char* kNames[kOperations] = {"all_reduce", "reduce", "reduce_scatter", "scan"};
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < kResults; ++i) {
      if (one.of[rank][i] == other.of[rank][i]) continue;
      const std::size_t count = i / kOperations % std::size(kCounts);
      const std::size_t op = i / kOperations / std::size(kCounts) % std::size(kOps);
      const std::size_t dtype = i / kOperations / std::size(kCounts) / std::size(kOps);
      return std::string(kNames[i % kOperations]) + "(" + std::string(reduce_op_name(kOps[op])) +
             ") of " + std::to_string(kCounts[count]) + " " +
             std::string(dtype_name(kDtypes[dtype])) + " on rank " + std::to_string(rank);
    }
  }
  return "";
}

TEST(ReproducibleTest, GivesTheSameBytesInTwoJobs) {
  std::vector<Shared<Hashes>> firsts(3);
  const Hosts shapes[] = {one_host(4), host_each(4), {2, 2}};
  for (std::size_t shape = 0; shape < std::size(shapes); ++shape) {
    SCOPED_TRACE(hosts_text(shapes[shape]));
    Hashes& first = *firsts[shape];
    run_job(shapes[shape], kManners[0], first);
    for (std::size_t i = 0; i < kResults; i += kOperations) {
      for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(first.of[rank][i], first.of[0][i]) << i;
    }
    for (const Manner& manner : {kManners[1], kManners[2]}) {
      const Shared<Hashes> again;
      run_job(shapes[shape], manner, *again);
      EXPECT_EQ(difference(first, *again), "") << "manner " << manner.lateness;
    }
  }
  EXPECT_EQ(difference(*firsts[0], *firsts[1]), "");
}

// Checks the inputs of the jobs: combined in another order, or rounded twice, they give other
// results.
TEST(ReproducibleTest, UsesInputsThatRound) {
  for (const Dtype dtype : kDtypes) {
    Reduction sum;
    sum.dtype = dtype;
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs.push_back(input_of(rank, {dtype, ReduceOp::kSum, 5}, kCounts[1]));
    }
    const Bytes whole = reference_reduce(sum, inputs, kCounts[1]);
    const Bytes last = reference_reduce(sum, {inputs[2], inputs[3]}, kCounts[1]);
    const Bytes others = reference_reduce(sum, {inputs[0], inputs[1]}, kCounts[1]);
    EXPECT_NE(whole, reference_reduce(sum, {others, last}, kCounts[1])) << dtype_name(dtype);
  }
}

#ifdef __x86_64__
// Here each rank reduces for itself. One rank's processor flushes subnormal numbers to zero, as
// with -ffast-math and torch.set_flush_denormal(), so that its results in f32 and f64 differ.
TEST(SubnormalTest, FollowsTheFlagsOfEachProcess) {
  expect_ok(run_world(one_host(2), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 0) _mm_setcsr(_mm_getcsr() | 0x8040);
    const auto sum_of = [&](auto bits, int dtype) {
      EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &bits, 1, dtype, IVY_SUM, nullptr), IVY_OK)
          << ivy_last_error();
      return bits;
    };
    const bool flushes = rank == 0;
    EXPECT_EQ(sum_of(std::uint32_t{3}, IVY_F32), flushes ? 0U : 6U);
    EXPECT_EQ(sum_of(std::uint64_t{3}, IVY_F64), flushes ? 0U : 6U);
    EXPECT_EQ(sum_of(std::uint16_t{3}, IVY_BF16), flushes ? 0U : 6U);
    // Subnormal numbers of these types are normal f32 numbers.
    EXPECT_EQ(sum_of(std::uint16_t{3}, IVY_F16), 6U);
    EXPECT_EQ(sum_of(std::uint8_t{3}, IVY_F8E4M3), 6U);
    EXPECT_EQ(sum_of(std::uint8_t{3}, IVY_F8E5M2), 6U);
  }));
}
#endif

}  // namespace
}  // namespace ivy::comm::test
