// The part of SharedGroup that reads the members' own memory.
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <cerrno>

#include "comm/transports/shared_group.h"

namespace ivy::comm {
namespace {

// The most bytes read at once, so that a failure elsewhere ends a long copy.
constexpr std::size_t kBiteBytes = std::size_t{4} << 20;

}  // namespace

std::optional<std::uint64_t> SharedGroup::find_reach() {
  if (!await_entries()) return std::nullopt;
  std::uint64_t works = PeerMemory::kCanRead | PeerMemory::kCanMap;
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member != self_)
      works &= peers_.try_out(segment_->member(member).probe, segment_->descriptor());
  }
  publish(own().reach, works | kReachIsKnown);
  for (std::uint32_t member = 0; member < size_; ++member) {
    const std::atomic<std::uint64_t>& theirs = segment_->member(member).reach;
    if (!await_at_least(theirs, kReachIsKnown, member)) return std::nullopt;
    works &= theirs.load(std::memory_order_relaxed);
  }
  reach_ = works;
  return works;
}

bool SharedGroup::fail_to_reach(std::uint32_t member, const std::string& what) {
  deadline_->since();
  // If a peer's memory is gone, its death will be reported soon.
  const auto end = std::chrono::steady_clock::now() + Alarm::kVerdictTime;
  while (std::chrono::steady_clock::now() < end) {
    if (!may_go_on(member)) return false;
    poll(nullptr, 0, static_cast<int>(Alarm::kVerdictStep.count()));
  }
  Failure failure = make_failure(FailureKind::kTransport,
                                 "memory of rank " + std::to_string(options_.members[member].rank) +
                                     " on " + options_.host + " cannot be reached: " + what);
  failure.rank = options_.members[member].world_rank;
  failure.pid = options_.members[member].pid;
  set_host(failure, options_.host);
  add_operation(failure);
  break_with(failure);
  return false;
}

bool SharedGroup::map(std::uint32_t member, const BufferPlace& place, const std::uint8_t** mapped) {
  *mapped = nullptr;
  if (member == self_) {
    *mapped = reinterpret_cast<const std::uint8_t*>(place.address);
  } else if (place.is_registered() && (reach_.value_or(0) & PeerMemory::kCanMap) != 0) {
    *mapped = peers_.map(segment_->member(member).probe.pid, place);
    if (*mapped == nullptr) {
      return fail_to_reach(member, std::string("map its registered buffer: ") + strerror(errno));
    }
  }
  return true;
}

bool SharedGroup::fetch(std::uint32_t member, const BufferPlace& place, void* to, std::size_t bytes,
                        Stores stores) {
  const std::uint8_t* mapped = nullptr;
  if (!map(member, place, &mapped)) return false;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t bite = std::min(kBiteBytes, bytes - done);
    std::uint8_t* const part = static_cast<std::uint8_t*>(to) + done;
    if (mapped != nullptr) {
      copy(part, mapped + done, bite, stores);
    } else {
      const int failed =
          PeerMemory::read(segment_->member(member).probe.pid, part, place.address + done, bite);
      if (failed != 0) return fail_to_reach(member, strerror(failed));
    }
    done += bite;
    if (is_broken()) return false;
  }
  return true;
}

bool SharedGroup::await_fetched() {
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_) continue;
    if (!await_at_least(segment_->member(member).progress.fetched, number_, member)) return false;
  }
  peers_.trim();
  return true;
}

}  // namespace ivy::comm
