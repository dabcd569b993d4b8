// SPDX-License-Identifier: Apache-2.0
// Operations of ranks, folded over ranks in the same operation.
#include "launcher/hang/operation_lines.h"

#include <gtest/gtest.h>

#include "proto/wire/operation.h"
#include "proto/wire/status_page.h"

namespace ivy {
namespace {

using comm_status::Dtype;
using comm_status::Operation;
using comm_status::Phase;
using comm_status::RankState;
using comm_status::Reduction;

void fill(OperationState& state, std::uint64_t sequence, std::uint64_t age_ms) {
  state.set_communicator("world");
  state.set_sequence(sequence);
  state.set_operation(static_cast<std::uint32_t>(Operation::kAllReduce));
  state.set_dtype(static_cast<std::uint32_t>(Dtype::kF32));
  state.set_reduction(static_cast<std::uint32_t>(Reduction::kSum));
  state.set_count(1024);
  state.set_peer(-1);
  state.set_phase(static_cast<std::uint32_t>(Phase::kWaiting));
  state.set_age_ms(age_ms);
}

RankOperations& add(HostOperations& host, std::uint32_t rank, RankState state = RankState::kAlive,
                    int code = 0) {
  RankOperations& added = *host.operations.add_ranks();
  added.set_rank(rank);
  added.set_pid(static_cast<std::int32_t>(100 + rank));
  added.set_state(static_cast<std::uint32_t>(state));
  added.set_code(code);
  return added;
}

TEST(OperationLines, FoldRanksInTheSameOperation) {
  HostOperations a{"a", {}};
  HostOperations b{"b", {}};
  for (const std::uint32_t rank : {0u, 1u}) fill(*add(a, rank).add_running(), 812, 30'500);
  fill(*add(b, 2).add_running(), 812, 29'000);
  fill(*add(b, 3).mutable_last(), 811, 31'000);
  EXPECT_EQ(
      operation_lines({a, b}, {}),
      "rank 3 did not enter all_reduce #812 of \"world\" (last entered all_reduce #811); ranks "
      "0-2 wait in it (1024 f32, sum) for 29 s\n"
      "ranks 0-2 (hosts a, b): in all_reduce #812 of \"world\" (1024 f32, sum), waiting for "
      "the others, for 29-30 s\n"
      "rank 3 (host b, pid 103): between operations: finished all_reduce #811 of \"world\" "
      "31 s ago");
}

TEST(OperationLines, MarkDeadRanksWithTheirLastOperation) {
  HostOperations a{"a", {}};
  fill(*add(a, 4, RankState::kSignalled, 9).add_running(), 5, 2'000);
  fill(*add(a, 5, RankState::kExited, 1).mutable_last(), 4, 2'000);
  add(a, 6, RankState::kLeft);
  add(a, 7);
  EXPECT_EQ(operation_lines({a}, {"b"}),
            "rank 4 (host a, pid 104; SIGKILL): was in all_reduce #5 of \"world\" (1024 f32, sum), "
            "waiting for the others, entered 2 s ago\n"
            "rank 5 (host a, pid 105; exit 1): had finished all_reduce #4 of \"world\" 2 s ago\n"
            "rank 6 (host a, pid 106): has left the communicator\n"
            "rank 7 (host a, pid 107): no operation yet\n"
            "host b did not answer in time");
}

TEST(OperationLines, ListEveryRunningOperationOfARank) {
  HostOperations a{"a", {}};
  RankOperations& rank = add(a, 0);
  fill(*rank.add_running(), 1, 1'000);
  OperationState& receive = *rank.add_running();
  fill(receive, 2, 3'000);
  receive.set_communicator("pipe");
  receive.set_operation(static_cast<std::uint32_t>(Operation::kReceive));
  receive.set_reduction(0);
  receive.set_peer(7);
  EXPECT_EQ(operation_lines({a}, {}),
            "rank 0 (host a, pid 100): in all_reduce #1 of \"world\" (1024 f32, sum), waiting for "
            "the others, for 1 s\n"
            "rank 0 (host a, pid 100): in recv #2 of \"pipe\" (1024 f32, from rank 7), waiting for "
            "the other side, for 3 s");
}

TEST(OperationLines, InferMembersOfOtherCommunicatorsFromTheirUsers) {
  HostOperations a{"a", {}};
  OperationState& waits = *add(a, 0).add_running();
  fill(waits, 5, 2'000);
  waits.set_communicator("world/1");
  OperationState& was = *add(a, 1).mutable_last();
  fill(was, 4, 2'000);
  was.set_communicator("world/1");
  fill(*add(a, 2).mutable_last(), 9, 2'000);
  EXPECT_TRUE(
      operation_lines({a}, {}).starts_with("rank 1 did not enter all_reduce #5 of \"world/1\" "
                                           "(last entered all_reduce #4); rank 0 waits "
                                           "in it (1024 f32, sum) for 2 s\n"));
}

TEST(OperationWaits, NameExitedRanksThatOthersWaitFor) {
  HostOperations a{"a", {}};
  fill(*add(a, 0, RankState::kLeft).mutable_last(), 811, 31'000);
  for (const std::uint32_t rank : {1u, 3u}) fill(*add(a, rank).add_running(), 812, 30'500);
  OperationState& receive = *add(a, 2).add_running();
  fill(receive, 4, 1'000);
  receive.set_operation(static_cast<std::uint32_t>(Operation::kReceive));
  receive.set_peer(0);
  EXPECT_EQ(operation_waits({a}, {0}),
            (std::vector<std::string>{"ranks 1,3 wait for rank 0 in all_reduce #812 of \"world\"",
                                      "rank 2 waits for rank 0 in recv #4 of \"world\""}));
  EXPECT_TRUE(operation_waits({a}, {}).empty());
}

TEST(OperationLines, PrintsNothingIfNoRankHasAttached) { EXPECT_EQ(operation_lines({}, {}), ""); }

}  // namespace
}  // namespace ivy
