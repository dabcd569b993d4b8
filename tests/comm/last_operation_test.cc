// SPDX-License-Identifier: Apache-2.0
// A mismatch in the last operation, also if a rank can leave it before the others arrive. Every
// rank gets an error, from the operation or from finalize, that shows both sides.
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

struct Mismatch {
  const char* name;
  std::function<int(ivy_comm*, float*, float*)> first;   // On all ranks but the last.
  std::function<int(ivy_comm*, float*, float*)> second;  // On the last rank.
  std::vector<std::string> shown;
};

std::vector<std::size_t> counts_of(ivy_comm* comm, std::size_t each, std::size_t last) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ivy_comm_size(comm)), each);
  counts.back() = last;
  return counts;
}

std::vector<Mismatch> even_mismatches() {
  using F = float*;
  const auto broadcast = [](int root, std::size_t count) {
    return [=](ivy_comm* comm, F send, F) {
      return ivy_broadcast(comm, send, count, IVY_F32, root, nullptr);
    };
  };
  const auto reduce = [](int root) {
    return [=](ivy_comm* comm, F send, F receive) {
      return ivy_reduce(comm, send, receive, 5, IVY_F32, IVY_SUM, root, nullptr);
    };
  };
  const auto gather = [](int root) {
    return [=](ivy_comm* comm, F send, F receive) {
      return ivy_gather(comm, send, receive, 5, IVY_F32, root, nullptr);
    };
  };
  const auto scatter = [](int root) {
    return [=](ivy_comm* comm, F send, F receive) {
      return ivy_scatter(comm, send, receive, 5, IVY_F32, root, nullptr);
    };
  };
  return {
      {"broadcast_root",
       broadcast(0, 5),
       broadcast(1, 5),
       {"5 f32 from rank 0", "5 f32 from rank 1"}},
      {"broadcast_count", broadcast(0, 5), broadcast(0, 6), {"of 5", "of 6"}},
      {"reduce_root",
       reduce(0),
       reduce(1),
       {"reduce(sum) of 5 f32 to rank 0", "reduce(sum) of 5 f32 to rank 1"}},
      {"gather_root",
       gather(0),
       gather(1),
       {"gather of 5 f32 to rank 0", "gather of 5 f32 to rank 1"}},
      {"scatter_root",
       scatter(0),
       scatter(1),
       {"scatter of 5 f32 from rank 0", "scatter of 5 f32 from rank 1"}},
      {"broadcast_or_reduce", broadcast(0, 5), reduce(0), {"broadcast", "reduce(sum)"}},
  };
}

std::vector<Mismatch> uneven_mismatches() {
  using F = float*;
  const auto all_gather_v = [](std::size_t last) {
    return [=](ivy_comm* comm, F send, F receive) {
      const std::vector<std::size_t> counts = counts_of(comm, 3, last);
      return ivy_all_gather_v(comm, send, receive, counts.data(), nullptr, IVY_F32, nullptr);
    };
  };
  const auto all_to_all_v = [](std::size_t receives) {
    return [=](ivy_comm* comm, F send, F receive) {
      const std::vector<std::size_t> sent = counts_of(comm, 3, 3);
      std::vector<std::size_t> received = sent;
      received.front() = receives;
      return ivy_all_to_all_v(comm, send, sent.data(), nullptr, receive, received.data(), nullptr,
                              IVY_F32, nullptr);
    };
  };
  // The root expects 3 elements from every rank, and sends 3 to every rank.
  const auto gather_v = [](std::size_t own) {
    return [=](ivy_comm* comm, F send, F receive) {
      return ivy_gather_v(comm, send, own, receive, counts_of(comm, 3, 3).data(), nullptr, IVY_F32,
                          0, nullptr);
    };
  };
  const auto scatter_v = [](std::size_t own) {
    return [=](ivy_comm* comm, F send, F receive) {
      return ivy_scatter_v(comm, send, counts_of(comm, 3, 3).data(), nullptr, receive, own, IVY_F32,
                           0, nullptr);
    };
  };
  return {
      {"all_gather_v", all_gather_v(3), all_gather_v(4), {"all_gatherv", "in all"}},
      {"all_to_all_v", all_to_all_v(3), all_to_all_v(7), {"12", "28"}},
      {"gather_v", gather_v(3), gather_v(7), {" 28 bytes", "expects 12"}},
      {"scatter_v", scatter_v(3), scatter_v(7), {" 12 bytes", "expects 28"}},
  };
}

std::vector<Mismatch> mismatches() {
  std::vector<Mismatch> all = even_mismatches();
  for (const Mismatch& mismatch : uneven_mismatches()) all.push_back(mismatch);
  return all;
}

class LastOperationTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(LastOperationTest, ReportsBothSidesOnEveryRank) {
  for (const Mismatch& mismatch : mismatches()) {
    SCOPED_TRACE(mismatch.name);
    expect_ok(run_world(GetParam(), [&](int rank) {
      ivy_options options = {};
      options.struct_bytes = sizeof options;
      options.rank = -1;
      options.world_size = -1;
      options.timeout_ms = scaled_time(seconds(10)).count();
      ivy_comm* world = nullptr;
      ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
      std::vector<float> send(1000, 1);
      std::vector<float> receive(1000);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      const bool is_last = rank == ivy_comm_size(world) - 1;
      int code = (is_last ? mismatch.second : mismatch.first)(world, send.data(), receive.data());
      std::string text = ivy_last_error();
      const int finalized = ivy_finalize(world);
      if (code == IVY_OK) {
        code = finalized;
        text = ivy_last_error();
      }
      EXPECT_EQ(code, IVY_ABORTED) << text;
      for (const std::string& side : mismatch.shown) {
        EXPECT_NE(text.find(side), std::string::npos) << side << " in: " << text;
      }
    }));
    if (HasFailure()) return;
  }
}

// ---- Groups -------------------------------------------------------------------------------------

int in_group(const Mismatch& mismatch, ivy_comm* group) {
  std::vector<float> send(1000, 1);
  std::vector<float> receive(1000);
  const bool is_last = ivy_comm_rank(group) == ivy_comm_size(group) - 1;
  return (is_last ? mismatch.second : mismatch.first)(group, send.data(), receive.data());
}

// Freeing a group does not wait, so only the last rank to free it is certain to get the error.
TEST_P(LastOperationTest, ReportsAMismatchInAGroupToAtLeastOneRank) {
  for (const Mismatch& mismatch : mismatches()) {
    for (const bool by_finalize : {false, true}) {
      SCOPED_TRACE(std::string(mismatch.name) + (by_finalize ? ", finalize" : ""));
      Shared<std::atomic<int>> reported;
      expect_ok(run_world(GetParam(), [&](int rank) {
        ivy_options options = {};
        options.struct_bytes = sizeof options;
        options.rank = -1;
        options.world_size = -1;
        options.timeout_ms = scaled_time(seconds(10)).count();
        ivy_comm* world = nullptr;
        ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
        ivy_comm* group = nullptr;
        ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
        ASSERT_EQ(ivy_barrier(group, nullptr), IVY_OK) << ivy_last_error();
        int code = in_group(mismatch, group);
        std::string text = ivy_last_error();
        const int ended = by_finalize ? ivy_finalize(world) : ivy_comm_free(group);
        if (code == IVY_OK) {
          code = ended;
          text = ivy_last_error();
        }
        EXPECT_TRUE(code == IVY_ABORTED || code == IVY_OK) << text;
        for (const std::string& side : mismatch.shown) {
          if (code == IVY_OK) break;
          EXPECT_NE(text.find(side), std::string::npos) << side << " in: " << text;
        }
        *reported += code == IVY_ABORTED;
        if (!by_finalize) {
          EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
        }
      }));
      EXPECT_GE(*reported, 1);
      if (HasFailure()) return;
    }
  }
}

// One rank keeps the group to the end: the others free it immediately, without an error.
TEST_P(LastOperationTest, FreeingAGroupBlocksNoRank) {
  Shared<std::atomic<int>> freed;
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
    int value = rank;
    if (rank == size - 1) {
      // Has not even called the last operation.
      EXPECT_TRUE(ivy::test::eventually([&] { return *freed >= 1; }, seconds(20)));
    }
    EXPECT_EQ(ivy_broadcast(group, &value, 1, IVY_I32, 0, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(value, 0);
    if (rank == size - 1) return;
    const std::int64_t begun = monotonic_ms();
    EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
    EXPECT_LT(monotonic_ms() - begun, scaled_time(seconds(1)).count());
    ++*freed;
  }));
}

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

INSTANTIATE_TEST_SUITE_P(Worlds, LastOperationTest,
                         ::testing::Values(one_host(2), one_host(3), host_each(2), host_each(3),
                                           Hosts{2, 2}, Hosts{3, 1}),
                         name_of_world);

TEST(LastOperationsTest, FinalizeWaitsForLateRanksAndSucceeds) {
  expect_ok(run_world(host_each(3), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 2) std::this_thread::sleep_for(milliseconds(200));
    int value = rank;
    EXPECT_EQ(ivy_broadcast(world, &value, 1, IVY_I32, 0, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(value, 0);
  }));
}

}  // namespace
}  // namespace ivy::comm::test
