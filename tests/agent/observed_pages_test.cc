// SPDX-License-Identifier: Apache-2.0
// Pages of processes that publish their positions without being attached.
#include "agent/node/supervisor/observed_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace ivy {
namespace {

using comm_status::Operation;
using comm_status::OperationRecord;
using comm_status::Phase;
using comm_status::SlotView;

// The process's own mapping of its page.
SlotView slot_of(const SharedPage& shared) {
  void* const memory =
      mmap(nullptr, shared.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, shared.descriptor(), 0);
  return comm_status::StatusPage::open(memory, shared.bytes()).value().slot(0);
}

OperationRecord enter(SlotView slot, std::uint32_t row, std::uint64_t sequence) {
  OperationRecord record;
  record.sequence = sequence;
  record.count = 64;
  record.entered_ns = 1'000'000'000 * sequence;
  record.communicator = static_cast<std::uint16_t>(row);
  record.communicator_hash = comm_status::communicator_hash(slot.communicator_name(row));
  record.operation = Operation::kAllReduce;
  slot.enter(record);
  return record;
}

TEST(ObservedPages, ContainThePositionOfEveryProcess) {
  ObservedPages pages;
  SlotView slot = slot_of(**pages.page_of(3, 4711, 0));
  EXPECT_EQ(*pages.page_of(3, 4711, 0), *pages.page_of(3, 4711, 0));
  EXPECT_NE(*pages.page_of(3, 4711, 0), *pages.page_of(3, 4712, 0));
  slot.name_communicator(0, "2 4 0xabc tp 1");
  slot.name_communicator(5, "0 1 0xdef");
  enter(slot, 0, 17);
  slot.set_phase(0, Phase::kOnDevice, (4u << 1) + 1);
  HostEvidence evidence;
  pages.add_places(29'500'000'000, evidence);
  ASSERT_EQ(evidence.nccl_places_size(), 2);
  const NcclPosition& place = evidence.nccl_places(0);
  EXPECT_EQ(place.rank(), 3u);
  EXPECT_EQ(place.pid(), 4711);
  EXPECT_EQ(place.communicator(), "0xabc tp 1");
  EXPECT_EQ(place.member(), 2u);
  EXPECT_EQ(place.members(), 4u);
  EXPECT_EQ(place.operation().sequence(), 17u);
  EXPECT_EQ(place.operation().age_ms(), 12'500u);
  EXPECT_EQ(place.operation().phase(), static_cast<std::uint32_t>(Phase::kOnDevice));
  EXPECT_FALSE(place.is_over());
  EXPECT_EQ(place.peer_above(), 4u);
  EXPECT_TRUE(place.is_sending());
  EXPECT_FALSE(evidence.nccl_places(1).has_operation());
  pages.clear();
  HostEvidence none;
  pages.add_places(0, none);
  EXPECT_EQ(none.nccl_places_size(), 0);
}

TEST(ObservedPages, ReportAnOperationThatADeviceDoesNotFinish) {
  ObservedPages pages;
  SlotView slot = slot_of(**pages.page_of(3, 4711, 0));
  slot.name_communicator(0, "0 2 0xabc");
  OperationRecord record = enter(slot, 0, 1);
  constexpr std::uint64_t kLimit = 5'000'000'000;
  slot.set_phase(0, Phase::kQueued);
  EXPECT_FALSE(pages.find_stall(60'000'000'000, kLimit)) << "the device has other work";
  slot.set_phase(0, Phase::kOnDevice);
  EXPECT_FALSE(pages.find_stall(5'900'000'000, kLimit));
  EXPECT_EQ(pages.find_stall(6'100'000'000, kLimit), 3u);
  EXPECT_FALSE(pages.find_stall(9'000'000'000, kLimit)) << "it was already reported";
  record.outcome = comm_status::Outcome::kDone;
  slot.finish(record);
  enter(slot, 0, 2);
  slot.set_phase(0, Phase::kOnDevice);
  EXPECT_EQ(pages.find_stall(60'000'000'000, kLimit), 3u);
}

TEST(ObservedPages, DropTheOldestOfTooManyProcesses) {
  ObservedPages pages;
  const SharedPage* const other = *pages.page_of(1, 9, 0);
  for (int pid = 1; pid <= 100; ++pid)
    slot_of(**pages.page_of(0, pid, 0)).name_communicator(0, "0 1 0x1");
  HostEvidence evidence;
  pages.add_places(0, evidence);
  EXPECT_EQ(evidence.nccl_places_size(), static_cast<int>(ObservedPages::kMaxPerRank));
  EXPECT_EQ(evidence.nccl_places(0).pid(), 85);
  EXPECT_EQ(*pages.page_of(1, 9, 0), other);
}

// A page may contain any bytes.
TEST(ObservedPages, TolerateGarbage) {
  ObservedPages pages;
  SlotView slot = slot_of(**pages.page_of(0, 1, 0));
  slot.name_communicator(0, "99999999999999999999 -1 \xff\n");
  slot.name_communicator(1, " ");
  slot.name_communicator(2, std::string(55, '7'));
  enter(slot, 0, ~std::uint64_t{0});
  HostEvidence evidence;
  pages.add_places(0, evidence);
  ASSERT_EQ(evidence.nccl_places_size(), 3);
  EXPECT_EQ(evidence.nccl_places(0).member(), 0u);
  EXPECT_EQ(evidence.nccl_places(0).operation().age_ms(), 0u);
}

}  // namespace
}  // namespace ivy
