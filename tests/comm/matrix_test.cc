// SPDX-License-Identifier: Apache-2.0
// Every collective, type, reduction, buffer mode and count, and every size at which the algorithm
// changes, on one host, between hosts and on uneven hosts, blocking and as work, compared with a
// serial reference. One set of processes for each world runs the whole list.
#include <algorithm>
#include <cstring>

#include "comm/transports/shm/shared_layout.h"
#include "comm/transports/tcp/tcp_streams.h"
#include "tests/comm/matrix_calls.h"
#include "tests/comm/operations.h"

namespace ivy::comm::test {
namespace {

// The counts 0, 1, fewer than ranks, and a prime, each in every buffer mode.
constexpr std::size_t kForms = 4 * std::size(kModes);

std::size_t count_of(std::size_t form, int ranks) {
  const std::size_t prime = ranks <= 4 ? 1031 : 127;
  const std::size_t counts[] = {0, 1, ranks > 2 ? static_cast<std::size_t>(ranks) - 1 : 7, prime};
  return counts[form / std::size(kModes)];
}

// Returns the number of forms that each type and reduction gets in one world; other worlds get
// others. Many ranks are slow on few processors.
std::size_t forms_of(int ranks) { return ranks <= 4 ? kForms : ranks <= 8 ? kForms / 2 : 1; }

// Runs all calls of a type, concurrently (as work) or one after the other.
void run_form(Caller& caller, const Case& c, int root, bool as_work) {
  if (as_work) caller.begin_works();
  for (const MatrixCall& call : matrix_calls()) {
    // Calls without a reduction do not depend on it, so run them only once.
    if (call.reduces || c.kind.op == ReduceOp::kSum) (caller.*call.call)(c, root);
  }
  caller.settle();
}

// Runs every type with every reduction that it supports.
void run_types(Caller& caller, std::size_t shift) {
  const std::size_t forms = forms_of(caller.size());
  std::uint32_t seed = 0;
  for (std::size_t dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (std::size_t op = 0; op < kReduceOpCount; ++op) {
      const Kind kind = {static_cast<Dtype>(dtype), static_cast<ReduceOp>(op), ++seed};
      if (!is_reducible(kind.dtype, kind.op)) continue;
      for (std::size_t i = 0; i < forms; ++i) {
        // Types of one reduction, and reductions of one type, use different forms.
        const std::size_t turn = dtype + 7 * op + shift + i * (kForms / forms);
        const std::size_t form = turn % kForms;
        const BufferMode mode = kModes[form % std::size(kModes)];
        const Case c = {kind, count_of(form, caller.size()), mode, turn / kForms % 2 == 0};
        const int root = static_cast<int>(turn) % caller.size();
        run_form(caller, c, root, (turn + op) % 2 == 0);
        if (!caller.is_ok()) return;
      }
    }
  }
}

void run_operations(Caller& caller, const Case& c) {
  const int root = static_cast<int>(c.kind.seed) % caller.size();
  for (const MatrixCall& call : matrix_calls()) (caller.*call.call)(c, root);
  caller.barrier();
}

// Returns sizes in bytes around every size at which the algorithm changes.
std::vector<std::size_t> sizes_in_bytes(int ranks) {
  std::vector<std::size_t> sizes = {0, 8, kInlineBytes, kInlineBytes + 8, 1031 * 8};
  for (const std::size_t edge : {kEagerBytes, kSlotBytes}) {
    for (const std::size_t size : {edge - 8, edge, edge + 8}) sizes.push_back(size);
  }
  // Blocks of all_to_all that together just fill an eager area.
  const std::size_t shared = kEagerBytes / static_cast<std::size_t>(ranks) / 8 * 8;
  if (ranks > 1) sizes.insert(sizes.end(), {shared, shared + 8});
  if (ranks <= 5) sizes.push_back(kSlotsPerMember * kSlotBytes * 2 + 24);
  return sizes;
}

struct SizedKind {
  Dtype dtype;
  ReduceOp op;
};
// Elements of every size. Partials of f16 and of averages are wider than their elements.
constexpr SizedKind kSized[] = {
    {Dtype::kF32, ReduceOp::kSum},    {Dtype::kI64, ReduceOp::kMax},
    {Dtype::kU8, ReduceOp::kAvg},     {Dtype::kF16, ReduceOp::kSum},
    {Dtype::kI64, ReduceOp::kAvg},    {Dtype::kF32, ReduceOp::kPremulSum},
    {Dtype::kF8E5m2, ReduceOp::kSum}, {Dtype::kC128, ReduceOp::kProduct},
    {Dtype::kBf16, ReduceOp::kAvg},   {Dtype::kF64, ReduceOp::kPremulSum},
    {Dtype::kF8E4m3, ReduceOp::kAvg}};

Case sized_case(std::size_t kind, std::size_t bytes, BufferMode mode, std::uint32_t seed) {
  const SizedKind& of = kSized[kind % std::size(kSized)];
  const std::size_t count = bytes / element_bytes(of.dtype);
  return {{of.dtype, of.op, seed}, count, mode, seed % 2 == 0};
}

// With many ranks, each size and kind runs in one mode; otherwise in all three.
void run_sizes(Caller& caller, std::uint32_t seed) {
  const int turns = caller.size() > 8 ? 1 : 3;
  for (const std::size_t bytes : sizes_in_bytes(caller.size())) {
    for (int turn = 0; turn < turns; ++turn) {
      ++seed;
      run_operations(caller, sized_case(seed, bytes, kModes[seed % 3], seed));
      if (!caller.is_ok()) return;
    }
  }
  constexpr std::size_t kSizes[] = {9000, kEagerBytes + 8, 300'000};
  for (std::size_t kind = 0; kind < std::size(kSized); ++kind) {
    for (int turn = 0; turn < turns; ++turn) {
      ++seed;
      const Case c = sized_case(kind, kSizes[seed % 3], BufferMode::kOut, seed);
      caller.all_reduce(c, 0);
      caller.reduce(c, static_cast<int>(seed) % caller.size());
      caller.scan(c, 0);
      caller.exscan(c, 0);
      if (!caller.is_ok()) return;
    }
  }
}

TEST(MatrixCallsTest, HaveEveryCollective) {
  std::set<std::string> names = {"barrier", "send", "recv", "sendrecv"};  // Not part of the matrix.
  for (const MatrixCall& call : matrix_calls()) names.insert(call.name);
  EXPECT_EQ(functions_missing_in(names), std::set<std::string>());
}

TEST(OperationsTest, HaveEveryFunction) {
  std::set<std::string> names = {"send", "recv"};  // Covered by sendrecv.
  for (const NamedOperation& operation : operations()) names.insert(operation.name);
  EXPECT_EQ(functions_missing_in(names), std::set<std::string>());
}

class MatrixTest : public ::testing::TestWithParam<Hosts> {};

// Shifts the forms, so that worlds do not all omit the same ones.
std::uint32_t shift_of(const Hosts& hosts) {
  return static_cast<std::uint32_t>(rank_count(hosts) + 5 * (static_cast<int>(hosts.size()) - 1));
}

TEST_P(MatrixTest, EqualsTheReference) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int) {
    const World world;
    ASSERT_TRUE(world);
    bool is_ok = true;
    Caller caller(world, GetParam(), &is_ok);
    run_sizes(caller, shift_of(GetParam()));
    if (is_ok) run_types(caller, shift_of(GetParam()));
    if (is_ok) caller.barrier();
  });
  expect_ok(ends);
}

class RegisteredMatrixTest : public MatrixTest {};

// Ranks register buffers independently of each other, without an effect on the results.
TEST_P(RegisteredMatrixTest, EqualsTheReferenceWithRegisteredBuffers) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    bool is_ok = true;
    Caller caller(world, GetParam(), &is_ok);
    registration().comm = world;
    std::uint32_t seed = 77;
    // Every pair of ranks allocates and maps every buffer again.
    const bool is_small = caller.size() <= 4;
    for (const int pattern : {0, 1, 2}) {
      registration().which = pattern == 0    ? Registered::kAll
                             : pattern == 1  ? Registered::kEverySecond
                             : rank % 2 == 0 ? Registered::kAll
                                             : Registered::kNone;
      for (const std::size_t bytes :
           {kInlineBytes, kEagerBytes + 8, kSlotBytes + 8, kSlotsPerMember * kSlotBytes + 24}) {
        if (!is_small && bytes != kEagerBytes + 8) continue;
        for (const BufferMode mode : kModes) {
          ++seed;
          run_operations(caller, sized_case(seed, bytes, mode, seed));
          if (!is_ok) return;
        }
      }
    }
    registration().which = Registered::kNone;
    caller.barrier();
  });
  expect_ok(ends);
}

class StreamsMatrixTest : public MatrixTest {};

// The dialling rank chooses the number of streams of a connection, so ranks need not agree. The
// lengths are around those from which a message is divided among streams.
TEST_P(StreamsMatrixTest, EqualsTheReferenceOverSeveralStreams) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    setenv("IVY_TCP_STREAMS", std::to_string(rank % 2 == 0 ? 3 : 2 + rank).c_str(), 1);
    const World world;
    ASSERT_TRUE(world);
    bool is_ok = true;
    Caller caller(world, GetParam(), &is_ok);
    std::uint32_t seed = 33;
    const bool is_small = caller.size() <= 4;
    for (const std::size_t bytes : {std::size_t{64}, 2 * kMinStripe - 8, 2 * kMinStripe,
                                    3 * kMinStripe + 24, std::size_t{64}, 16 * kMinStripe + 1000}) {
      if (!is_small && bytes > 3 * kMinStripe) continue;
      for (const BufferMode mode : kModes) {
        ++seed;
        run_operations(caller, sized_case(seed, bytes, mode, seed));
        if (!is_ok) return;
      }
    }
    caller.all_reduce({{Dtype::kF32, ReduceOp::kSum, ++seed}, 500'009}, 0);
    caller.barrier();
  });
  expect_ok(ends);
}

// Registered and larger than the caches, so that results bypass them.
void expect_large_sums(ivy_comm* world) {
  const std::size_t count = (std::size_t{64} << 20) / sizeof(std::uint32_t) + 1'000'003;
  const auto rank = static_cast<std::uint32_t>(ivy_comm_rank(world));
  const auto size = static_cast<std::uint32_t>(ivy_comm_size(world));
  void* memory[2] = {};
  for (void*& one : memory) {
    ASSERT_EQ(ivy_mem_alloc(world, count * sizeof(std::uint32_t), &one), IVY_OK)
        << ivy_last_error();
  }
  auto* const send = static_cast<std::uint32_t*>(memory[0]);
  auto* const receive = static_cast<std::uint32_t*>(memory[1]);
  for (std::uint32_t i = 0; i < count; ++i) send[i] = mix(i) + rank;
  const std::uint32_t ranks = size * (size - 1) / 2;
  const auto wrong = [&](const std::uint32_t* result) {
    std::uint32_t i = 0;
    while (i < count && result[i] == size * mix(i) + ranks) ++i;
    return i;
  };
  // The second time, slots contain the results of the first.
  for (const void* const from : {static_cast<const void*>(send), IVY_IN_PLACE}) {
    std::uint32_t* const to = from == send ? receive : send;
    ASSERT_EQ(ivy_all_reduce(world, from, to, count, IVY_U32, IVY_SUM, nullptr), IVY_OK)
        << ivy_last_error();
    ASSERT_EQ(wrong(to), count);
  }
  for (void* const one : memory) EXPECT_EQ(ivy_mem_free(one), IVY_OK) << ivy_last_error();
}

// Unaligned buffers, and a factor for each rank.
void expect_large_scaled_sums(ivy_comm* world) {
  const std::size_t count = (std::size_t{16} << 20) / sizeof(float) + 77'777;
  const int rank = ivy_comm_rank(world);
  const int size = ivy_comm_size(world);
  void* memory[2] = {};
  for (void*& one : memory) {
    ASSERT_EQ(ivy_mem_alloc(world, (count + 4) * sizeof(float), &one), IVY_OK) << ivy_last_error();
  }
  float* const send = static_cast<float*>(memory[0]) + 1;
  float* const receive = static_cast<float*>(memory[1]) + 3;
  for (std::size_t i = 0; i < count; ++i) send[i] = static_cast<float>(i % 1000);
  receive[-1] = receive[count] = -5;
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.factor = rank + 1;
  ASSERT_EQ(ivy_all_reduce(world, send, receive, count, IVY_F32, IVY_PREMUL_SUM, &call), IVY_OK)
      << ivy_last_error();
  const auto factors = static_cast<float>(size * (size + 1) / 2);
  std::size_t i = 0;
  while (i < count && receive[i] == factors * static_cast<float>(i % 1000)) ++i;
  EXPECT_EQ(i, count);
  EXPECT_EQ(receive[-1], -5);
  EXPECT_EQ(receive[count], -5);
  for (void* const one : memory) EXPECT_EQ(ivy_mem_free(one), IVY_OK) << ivy_last_error();
}

TEST(LargeAllReduceTest, ReducesRegisteredBuffersPastTheCaches) {
  for (const int ranks : {2, 3}) {
    expect_ok(run_world(one_host(ranks), [](int) {
      const World world;
      ASSERT_TRUE(world);
      expect_large_sums(world);
      expect_large_scaled_sums(world);
    }));
  }
}

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

INSTANTIATE_TEST_SUITE_P(Worlds, MatrixTest,
                         ::testing::Values(one_host(1), one_host(2), one_host(3), one_host(4),
                                           one_host(5), one_host(7), one_host(8), one_host(16),
                                           host_each(2), host_each(3), host_each(4), host_each(5),
                                           host_each(7), host_each(8), host_each(16), Hosts{2, 1},
                                           Hosts{2, 2}, Hosts{1, 3}, Hosts{2, 3}, Hosts{3, 2, 1},
                                           Hosts{1, 4, 2}, Hosts{4, 4}, Hosts{1, 2, 5, 8}),
                         name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, RegisteredMatrixTest,
                         ::testing::Values(one_host(1), one_host(2), one_host(3), one_host(4),
                                           one_host(5), one_host(7), one_host(8), one_host(16),
                                           host_each(2), host_each(3), host_each(5), host_each(8),
                                           Hosts{2, 2}, Hosts{1, 3}, Hosts{3, 2, 1}, Hosts{4, 4},
                                           Hosts{1, 2, 5, 8}),
                         name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, StreamsMatrixTest,
                         ::testing::Values(host_each(2), host_each(3), host_each(5), Hosts{2, 2},
                                           Hosts{1, 3}, Hosts{3, 2, 1}),
                         name_of_world);

}  // namespace
}  // namespace ivy::comm::test
