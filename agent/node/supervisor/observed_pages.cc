// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/observed_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "agent/node/segments/shared_memory.h"

namespace ivy {
namespace {

using comm_status::kCommunicators;
using comm_status::OperationRecord;
using comm_status::Outcome;
using comm_status::PageShape;
using comm_status::Phase;
using comm_status::SlotView;
using comm_status::StatusPage;

// Removes and returns the number at the start of the text, with the blank after it. Any process may
// have written the text, so it must not be trusted.
std::uint32_t take_number(std::string_view& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return number;
}

bool is_message(const OperationRecord& record) {
  return record.operation == comm_status::Operation::kSend ||
         record.operation == comm_status::Operation::kReceive;
}

void describe_position(const SlotView& slot, std::uint32_t row, std::uint64_t now_ns,
                       NcclPosition& position) {
  const std::string name = slot.communicator_name(row);
  std::string_view rest = name;
  position.set_member(take_number(rest));
  position.set_members(take_number(rest));
  position.set_communicator(std::string(rest));
  const std::optional<OperationRecord> current = slot.current(row);
  if (!current) return;
  OperationState& state = *position.mutable_operation();
  describe_operation(*current, slot, now_ns, state);
  state.clear_communicator();
  state.set_phase(static_cast<std::uint32_t>(slot.phase(row)));
  position.set_is_over(current->outcome != Outcome::kRunning);
  const std::uint32_t peer = slot.tag_above(row);
  if (position.is_over()) return;
  position.set_peer_above(peer >> 1);
  position.set_is_sending((peer & 1) != 0);
}

}  // namespace

void describe_operation(const OperationRecord& record, const SlotView& slot, std::uint64_t now_ns,
                        OperationState& out) {
  const std::string name = slot.communicator_name(record.communicator);
  // The row may have another owner by now.
  const bool is_its = comm_status::communicator_hash(name) == record.communicator_hash;
  out.set_communicator(is_its ? name : "");
  out.set_sequence(record.sequence);
  out.set_operation(static_cast<std::uint32_t>(record.operation));
  out.set_dtype(static_cast<std::uint32_t>(record.dtype));
  out.set_reduction(static_cast<std::uint32_t>(record.reduction));
  out.set_count(record.count);
  out.set_peer(record.peer);
  out.set_failed(record.outcome == Outcome::kFailed);
  const std::uint64_t since =
      record.outcome == Outcome::kRunning ? record.entered_ns : record.ended_ns;
  out.set_age_ms(now_ns > since ? (now_ns - since) / 1'000'000 : 0);
}

Result<std::unique_ptr<SharedPage>> SharedPage::make(const PageShape& shape) {
  const std::size_t bytes = IVY_TRY(StatusPage::bytes_of(shape));
  Descriptor fd(IVY_TRY(make_shared_memory("ivy-status", bytes)));
  const int reserved = reserve_shared_memory(fd.get(), 0, bytes);
  const bool has_memory = reserved == 0 || reserved == EOPNOTSUPP;
  void* const memory = has_memory
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)
                           : MAP_FAILED;
  if (memory == MAP_FAILED)
    return errno_error(Code::kResourceExhausted,
                       "status page of " + std::to_string(bytes) + " bytes",
                       has_memory ? errno : reserved);
  return std::unique_ptr<SharedPage>(
      new SharedPage(std::move(fd), memory, bytes, StatusPage::format(memory, shape)));
}

SharedPage::~SharedPage() { munmap(memory_, bytes_); }

Result<const SharedPage*> ObservedPages::page_of(std::uint32_t rank, pid_t pid,
                                                 std::uint32_t generation) {
  for (const Process& process : processes_)
    if (pid != 0 && process.pid == pid && process.rank == rank) return process.shared.get();
  const auto is_of_rank = [rank](const Process& process) { return process.rank == rank; };
  const auto count = std::count_if(processes_.begin(), processes_.end(), is_of_rank);
  if (static_cast<std::size_t>(count) >= kMaxPerRank)
    processes_.erase(std::find_if(processes_.begin(), processes_.end(), is_of_rank));
  Process made{rank, pid, IVY_TRY(SharedPage::make({1, 1, 1, generation}))};
  processes_.push_back(std::move(made));
  return processes_.back().shared.get();
}

void ObservedPages::add_places(std::uint64_t now_ns, HostEvidence& evidence) const {
  for (const Process& process : processes_) {
    const SlotView slot = process.shared->page().slot(0);
    for (std::uint32_t row = 0; row < kCommunicators; ++row) {
      if (slot.communicator_name(row).empty()) continue;
      // A finished message shows nothing about other ranks.
      const std::optional<OperationRecord> current = slot.current(row);
      if (current && is_message(*current) && current->outcome != Outcome::kRunning) continue;
      NcclPosition& position = *evidence.add_nccl_places();
      position.set_rank(process.rank);
      position.set_pid(process.pid);
      describe_position(slot, row, now_ns, position);
    }
  }
}

std::optional<std::uint32_t> ObservedPages::find_stall(std::uint64_t now_ns,
                                                       std::uint64_t limit_ns) {
  for (Process& process : processes_) {
    const SlotView slot = process.shared->page().slot(0);
    for (std::uint32_t row = 0; row < kCommunicators; ++row) {
      const std::optional<OperationRecord> current = slot.current(row);
      const bool is_stalled = current && current->outcome == Outcome::kRunning &&
                              slot.phase(row) == Phase::kOnDevice && now_ns > current->entered_ns &&
                              now_ns - current->entered_ns >= limit_ns;
      if (!is_stalled || current->entered_ns <= process.last_stall_ns) continue;
      process.last_stall_ns = current->entered_ns;
      return process.rank;
    }
  }
  return std::nullopt;
}

}  // namespace ivy
