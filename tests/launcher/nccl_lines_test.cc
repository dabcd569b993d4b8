// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/nccl_lines.h"

#include <gtest/gtest.h>

#include "proto/wire/operation.h"

namespace ivy {
namespace {

using comm_status::Dtype;
using comm_status::Operation;
using comm_status::Phase;

NcclPosition position(std::uint32_t rank, std::uint64_t sequence, std::uint64_t age_s,
                      std::optional<Phase> running = std::nullopt) {
  NcclPosition made;
  made.set_rank(rank);
  made.set_pid(100 + static_cast<int>(rank));
  made.set_member(rank);
  made.set_members(4);
  made.set_communicator("0x1a2b tp");
  if (sequence == 0) return made;
  OperationState& state = *made.mutable_operation();
  state.set_operation(static_cast<std::uint32_t>(Operation::kAllReduce));
  state.set_dtype(static_cast<std::uint32_t>(Dtype::kF32));
  state.set_count(1024);
  state.set_peer(-1);
  state.set_sequence(sequence);
  state.set_age_ms(age_s * 1000);
  made.set_is_over(!running);
  if (running) state.set_phase(static_cast<std::uint32_t>(*running));
  return made;
}

using Lines = std::vector<std::string>;

TEST(NcclLines, NameTheRankThatDidNotEnter) {
  EXPECT_EQ(
      nccl_lines({position(0, 17, 14, Phase::kOnDevice), position(1, 17, 12, Phase::kOnDevice),
                  position(2, 17, 13, Phase::kQueued), position(3, 16, 31)}),
      Lines{"rank 3 did not enter all_reduce #17 of NCCL communicator 0x1a2b \"tp\" (last "
            "entered all_reduce #16 31 s ago); ranks 0-2 wait in it (1024 f32) for 12 s"});
  EXPECT_EQ(nccl_lines({position(0, 1, 5, Phase::kOnDevice), position(1, 0, 0)}),
            Lines{"rank 1 did not enter all_reduce #1 of NCCL communicator 0x1a2b \"tp\"; rank 0 "
                  "waits in it (1024 f32) for 5 s; nothing is known about 2 of its members"});
}

TEST(NcclLines, CountEnteredOperationsWithoutDeviceData) {
  EXPECT_EQ(nccl_lines({position(0, 17, 12), position(1, 17, 12), position(2, 17, 12),
                        position(3, 16, 31)}),
            Lines{"rank 3 did not enter all_reduce #17 of NCCL communicator 0x1a2b \"tp\" (last "
                  "entered all_reduce #16 31 s ago); ranks 0-2 wait in it (1024 f32) for 12 s"});
  // The hosts' calls run ahead of the device.
  EXPECT_EQ(nccl_lines({position(0, 40, 12), position(1, 40, 12),
                        position(2, 40, 13, Phase::kIssued), position(3, 16, 31)}),
            Lines{"rank 3 did not enter collective #17 of NCCL communicator 0x1a2b \"tp\" (last "
                  "entered all_reduce #16 31 s ago); ranks 0-2 have entered all_reduce #40 (1024 "
                  "f32) 12 s ago"});
  EXPECT_EQ(
      nccl_lines({position(0, 17, 0), position(1, 17, 9), position(2, 17, 9), position(3, 16, 31)}),
      Lines{})
      << "one has just arrived";
  EXPECT_EQ(nccl_lines({position(0, 17, 40), position(1, 17, 40)}), Lines{}) << "no rank waits";
  EXPECT_EQ(nccl_lines({}), Lines{});
}

TEST(NcclLines, NameTheCauseIfAllRanksHaveEntered) {
  NcclPosition waits = position(2, 17, 12, Phase::kOnDevice);
  waits.set_peer_above(2);
  NcclPosition sends = position(0, 17, 12, Phase::kOnDevice);
  sends.set_peer_above(4);
  sends.set_is_sending(true);
  EXPECT_EQ(
      nccl_lines({sends, position(1, 17, 12, Phase::kOnDevice), waits,
                  position(3, 17, 12, Phase::kQueued)}),
      Lines{"ranks 0-3 are in all_reduce #17 of NCCL communicator 0x1a2b \"tp\" (1024 f32) "
            "for 12 s, and all ranks have entered it; the device of rank 3 has not started it; "
            "rank 0 waits for rank 3 to receive data; rank 2 waits for data from rank 1"});
}

TEST(NcclLines, ShowBothSidesOfAMismatch) {
  NcclPosition other = position(3, 17, 12, Phase::kOnDevice);
  other.mutable_operation()->set_operation(static_cast<std::uint32_t>(Operation::kBroadcast));
  other.mutable_operation()->set_peer(0);
  EXPECT_EQ(
      nccl_lines({position(0, 17, 12, Phase::kOnDevice), position(1, 17, 12, Phase::kOnDevice),
                  position(2, 17, 12, Phase::kOnDevice), other}),
      Lines{"ranks differ at collective #17 of NCCL communicator 0x1a2b \"tp\": ranks 0-2 are "
            "in all_reduce (1024 f32); rank 3 is in broadcast (1024 f32, root 0)"});
}

// One rank with several processes, as in an inference server.
TEST(NcclLines, NumberTheMembersIfARankHasSeveral) {
  NcclPosition second = position(0, 16, 30);
  second.set_member(1);
  NcclPosition first = position(0, 17, 12);
  first.set_members(2);
  EXPECT_EQ(nccl_lines({first, second}),
            Lines{"member 1 did not enter all_reduce #17 of NCCL communicator 0x1a2b \"tp\" (last "
                  "entered all_reduce #16 30 s ago); member 0 waits in it (1024 f32) for 12 s"});
}

TEST(NcclLines, NameAMessageThatWaits) {
  NcclPosition send = position(1, 3, 8, Phase::kOnDevice);
  send.mutable_operation()->set_operation(static_cast<std::uint32_t>(Operation::kSend));
  send.mutable_operation()->set_peer(2);
  EXPECT_EQ(nccl_lines({position(0, 5, 60), position(1, 5, 60), send}),
            Lines{"rank 1 is in send to member 2 of NCCL communicator 0x1a2b \"tp\" (1024 f32) for "
                  "8 s"});
}

// A host may send anything.
TEST(NcclLines, IgnoresImplausibleRecords) {
  NcclPosition wild;
  wild.set_communicator("x");
  wild.mutable_operation()->set_operation(4711);
  wild.mutable_operation()->set_sequence(~std::uint64_t{0});
  wild.mutable_operation()->set_phase(99);
  wild.set_peer_above(~0u);
  NcclPosition nameless = wild;
  nameless.clear_communicator();
  nameless.mutable_operation()->set_phase(static_cast<std::uint32_t>(Phase::kOnDevice));
  EXPECT_EQ(nccl_lines({wild, nameless, wild, NcclPosition()}).size(), 1u);
}

}  // namespace
}  // namespace ivy
