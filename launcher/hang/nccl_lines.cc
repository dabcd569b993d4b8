// SPDX-License-Identifier: Apache-2.0
// nccl_lines() groups the positions of all ranks by communicator. For each, add_collectives() finds
// the operation in which some members wait (progress_by_waits(), or by the numbers of operations if
// no wait is known) and describes it: as a mismatch (differing_line()), or with the members that
// are behind (progress_line()). add_messages() describes unfinished sends and receives.
#include "launcher/hang/nccl_lines.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/text.h"
#include "proto/wire/operation.h"

namespace ivy {
namespace {

using comm_status::Dtype;
using comm_status::Operation;
using comm_status::Phase;

constexpr std::size_t kMaxNcclLines = 16;
// Ranks that are this far ahead of others are not just between two operations.
constexpr std::uint64_t kAheadMs = 1'000;

using Positions = std::vector<const NcclPosition*>;

// Returns true if the device, or NCCL, is known to be still working on the operation.
bool is_waiting(const NcclPosition& position) {
  const auto phase = static_cast<Phase>(position.operation().phase());
  return position.has_operation() && !position.is_over() &&
         (phase == Phase::kQueued || phase == Phase::kOnDevice);
}

bool is_message(const NcclPosition& position) {
  const auto operation = static_cast<Operation>(position.operation().operation());
  return operation == Operation::kSend || operation == Operation::kReceive;
}

std::string operation_name(const OperationState& state) {
  return std::string(comm_status::name_of(static_cast<Operation>(state.operation()))) + " #" +
         std::to_string(state.sequence());
}

std::string operation_details(const OperationState& state) {
  const auto dtype = static_cast<Dtype>(state.dtype());
  std::string text =
      std::to_string(state.count()) + " " +
      (dtype == Dtype::kNone ? "elements" : std::string(comm_status::name_of(dtype)));
  if (state.peer() >= 0) text += ", root " + std::to_string(state.peer());
  return " (" + text + ")";
}

std::string seconds_of(std::uint64_t age_ms) { return std::to_string(age_ms / 1000) + " s"; }

// The members of one communicator with their names: ranks of the job if each member is a different
// rank, otherwise their numbers in the communicator.
class Members {
 public:
  explicit Members(const Positions& positions) : positions_(positions) {
    std::set<std::uint32_t> ranks;
    for (const NcclPosition* position : positions) ranks.insert(position->rank());
    has_ranks_ = ranks.size() == positions.size();
    for (const NcclPosition* position : positions) ranks_[position->member()] = position->rank();
  }
  const Positions& positions() const { return positions_; }

  std::string named(const Positions& some) const {
    std::vector<std::uint32_t> numbers;
    for (const NcclPosition* position : some)
      numbers.push_back(has_ranks_ ? position->rank() : position->member());
    return prefixed(numbers);
  }
  // Returns the name of the member with this number in the communicator.
  std::string named(std::uint32_t member) const {
    const auto rank = ranks_.find(member);
    const bool is_known = has_ranks_ && knows_members() && rank != ranks_.end();
    return is_known ? named_ranks(std::vector<std::uint32_t>{rank->second})
                    : "member " + std::to_string(member);
  }
  std::string communicator() const {
    const std::string& name = positions_.front()->communicator();
    const std::size_t blank = name.find(' ');
    std::string text = "NCCL communicator " + name.substr(0, blank);
    if (blank != std::string::npos) text += " \"" + name.substr(blank + 1) + "\"";
    return text;
  }
  // Returns the number of members without data; 0 if unknown.
  std::size_t without_data() const {
    const std::size_t members = positions_.front()->members();
    return members > positions_.size() ? members - positions_.size() : 0;
  }

 private:
  bool knows_members() const { return positions_.front()->members() > 0; }
  std::string prefixed(const std::vector<std::uint32_t>& numbers) const {
    if (has_ranks_) return named_ranks(numbers);
    return (numbers.size() == 1 ? "member " : "members ") + folded_ranks(numbers);
  }

  const Positions& positions_;
  bool has_ranks_ = false;
  std::map<std::uint32_t, std::uint32_t> ranks_;
};

// The members' positions relative to the oldest operation in which one of them waits.
struct CollectiveProgress {
  std::uint64_t sequence = 0;
  Positions waiting;
  Positions absent;
  std::uint64_t age_ms = ~std::uint64_t{0};  // Time since the last waiting member arrived.
};

// Determines the progress from operations that are known to be unfinished: from the events of
// NCCL's kernels, or because the member is still inside NCCL.
CollectiveProgress progress_by_waits(const Positions& positions) {
  CollectiveProgress found;
  for (const NcclPosition* position : positions) {
    const std::uint64_t sequence = position->operation().sequence();
    if (is_waiting(*position) && (found.sequence == 0 || sequence < found.sequence))
      found.sequence = sequence;
  }
  if (found.sequence == 0) return found;
  for (const NcclPosition* position : positions) {
    const std::uint64_t sequence = position->operation().sequence();
    if (sequence < found.sequence) {
      found.absent.push_back(position);
    } else if (is_waiting(*position) && sequence == found.sequence) {
      found.waiting.push_back(position);
      found.age_ms = std::min(found.age_ms, position->operation().age_ms());
    }
  }
  return found;
}

// Determines the progress only from the numbers of entered operations.
CollectiveProgress progress_by_counts(const Positions& positions) {
  CollectiveProgress found;
  std::uint64_t lowest = ~std::uint64_t{0};
  for (const NcclPosition* position : positions) {
    lowest = std::min(lowest, position->operation().sequence());
    found.sequence = std::max(found.sequence, position->operation().sequence());
  }
  if (lowest == found.sequence) return {};
  // All members ahead have entered the first operation that an absent one has not; only a member
  // that is in exactly that operation can describe it.
  for (const NcclPosition* position : positions) {
    const bool is_ahead = position->operation().sequence() > lowest;
    (is_ahead ? found.waiting : found.absent).push_back(position);
    if (is_ahead) found.age_ms = std::min(found.age_ms, position->operation().age_ms());
  }
  found.sequence = lowest + 1;
  return found.age_ms >= kAheadMs ? found : CollectiveProgress();
}

// Returns the last operation of the absent members, if it is the same for all.
std::string last_of(const Positions& absent) {
  const OperationState& first = absent.front()->operation();
  const auto is_same = [&first](const NcclPosition* position) {
    return position->operation().sequence() == first.sequence() &&
           position->operation().operation() == first.operation();
  };
  if (first.sequence() == 0 || !std::all_of(absent.begin(), absent.end(), is_same)) return "";
  return " (last entered " + operation_name(first) + " " + seconds_of(first.age_ms()) + " ago)";
}

// Describes members whose operation at this sequence differs from the others'.
std::string differing_line(const Members& members, std::uint64_t sequence) {
  std::map<std::string, Positions> sides;
  for (const NcclPosition* position : members.positions()) {
    const OperationState& state = position->operation();
    if (state.sequence() != sequence) continue;
    const auto operation = static_cast<Operation>(state.operation());
    sides[std::string(comm_status::name_of(operation)) + operation_details(state)].push_back(
        position);
  }
  if (sides.size() < 2) return "";
  std::string text = "ranks differ at collective #" + std::to_string(sequence) + " of " +
                     members.communicator() + ": ";
  std::vector<std::string> parts;
  for (const auto& [what, side] : sides)
    parts.push_back(members.named(side) + (side.size() == 1 ? " is in " : " are in ") + what);
  return text + joined(parts, "; ");
}

// For an operation that all members have entered: names the devices that have not started it, and
// the ranks that NCCL's proxy threads wait for.
std::string reasons(const Members& members, const Positions& waiting) {
  constexpr std::size_t kMaxWaits = 4;
  Positions queued;
  for (const NcclPosition* position : waiting)
    if (static_cast<Phase>(position->operation().phase()) == Phase::kQueued)
      queued.push_back(position);
  std::string text;
  if (!queued.empty() && queued.size() < waiting.size())
    text += std::string("; the ") + (queued.size() == 1 ? "device of " : "devices of ") +
            members.named(queued) + (queued.size() == 1 ? " has" : " have") + " not started it";
  std::size_t count = 0;
  for (const NcclPosition* position : waiting) {
    if (position->peer_above() == 0 || ++count > kMaxWaits) continue;
    const std::string peer = members.named(position->peer_above() - 1);
    text += "; " + members.named({position}) +
            (position->is_sending() ? " waits for " + peer + " to receive data"
                                    : " waits for data from " + peer);
  }
  return text;
}

std::string missing_data_note(const Members& members) {
  if (members.without_data() == 0) return "";
  return "; nothing is known about " + std::to_string(members.without_data()) + " of its members";
}

std::string progress_line(const Members& members, const CollectiveProgress& found) {
  const OperationState& state = found.waiting.front()->operation();
  const bool is_one = found.waiting.size() == 1;
  const std::string waiting_ranks = members.named(found.waiting);
  const std::string prefix = members.communicator();
  const std::string time = seconds_of(found.age_ms);
  if (found.absent.empty())
    return waiting_ranks + (is_one ? " is in " : " are in ") + operation_name(state) + " of " +
           prefix + operation_details(state) + " for " + time + ", and all ranks have entered it" +
           reasons(members, found.waiting);
  const bool is_next = state.sequence() == found.sequence;
  const std::string what =
      is_next ? operation_name(state) : "collective #" + std::to_string(found.sequence);
  const std::string absent = members.named(found.absent) + " did not enter " + what + " of " +
                             prefix + last_of(found.absent) + "; " + waiting_ranks;
  if (is_next)
    return absent + (is_one ? " waits" : " wait") + " in it" + operation_details(state) + " for " +
           time;
  return absent + (is_one ? " has" : " have") + " entered " + operation_name(state) +
         operation_details(state) + " " + time + " ago";
}

void add_messages(const Members& members, std::vector<std::string>& lines) {
  for (const NcclPosition* position : members.positions()) {
    if (!is_waiting(*position) || lines.size() >= kMaxNcclLines) continue;
    const OperationState& state = position->operation();
    const bool is_send = static_cast<Operation>(state.operation()) == Operation::kSend;
    OperationState plain = state;
    plain.set_peer(-1);
    lines.push_back(members.named({position}) + " is in " + (is_send ? "send to " : "recv from ") +
                    "member " + std::to_string(state.peer()) + " of " + members.communicator() +
                    operation_details(plain) + " for " + seconds_of(state.age_ms()));
  }
}

void add_collectives(const Members& members, std::vector<std::string>& lines) {
  CollectiveProgress found = progress_by_waits(members.positions());
  if (found.sequence == 0) found = progress_by_counts(members.positions());
  if (found.sequence == 0) return;
  const std::string differing = differing_line(members, found.sequence);
  lines.push_back((differing.empty() ? progress_line(members, found) : differing) +
                  missing_data_note(members));
}

}  // namespace

std::vector<std::string> nccl_lines(const std::vector<NcclPosition>& positions) {
  std::map<std::string, Positions> collectives;
  std::map<std::string, Positions> messages;
  for (const NcclPosition& position : positions)
    (is_message(position) ? messages : collectives)[position.communicator()].push_back(&position);
  std::vector<std::string> lines;
  for (const auto& [name, group] : collectives)
    if (lines.size() < kMaxNcclLines) add_collectives(Members(group), lines);
  for (const auto& [name, group] : messages) add_messages(Members(group), lines);
  return lines;
}

}  // namespace ivy
