// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/peer_buffers.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace ivy::comm {
namespace {

// Limit of the bytes read in one step, so that a failure elsewhere can end a long copy.
constexpr std::size_t kBiteBytes = std::size_t{4} << 20;

}  // namespace

std::optional<std::uint64_t> PeerBuffers::find_reach() {
  if (!entries_.await_all()) return std::nullopt;
  std::uint64_t works = PeerMemory::kCanRead | PeerMemory::kCanMap;
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_) continue;
    works &= memory_.try_out(segment_.member(member).probe, segment_.descriptor());
  }
  wait_.publish(segment_.member(self_).reach, works | kReachIsKnown);
  for (std::uint32_t member = 0; member < size_; ++member) {
    const std::atomic<std::uint64_t>& theirs = segment_.member(member).reach;
    if (!wait_.await(theirs, kReachIsKnown, member)) return std::nullopt;
    works &= theirs.load(std::memory_order_relaxed);
  }
  reach_ = works;
  return works;
}

bool PeerBuffers::map(std::uint32_t member, const BufferPlace& place, const std::uint8_t** mapped) {
  *mapped = nullptr;
  if (member == self_) {
    *mapped = reinterpret_cast<const std::uint8_t*>(place.address);
  } else if (place.is_registered() && (reach_.value_or(0) & PeerMemory::kCanMap) != 0) {
    *mapped = memory_.map(segment_.member(member).probe.pid, place);
    if (*mapped == nullptr) {
      policy_.report_unreachable(member,
                                 std::string("map its registered buffer: ") + strerror(errno));
      return false;
    }
  }
  return true;
}

bool PeerBuffers::fetch(std::uint32_t member, const PeerCopy& copied) {
  const std::uint8_t* mapped = nullptr;
  if (!map(member, copied.from, &mapped)) return false;
  for (std::size_t done = 0; done < copied.bytes;) {
    const std::size_t bite = std::min(kBiteBytes, copied.bytes - done);
    std::uint8_t* const part = static_cast<std::uint8_t*>(copied.to) + done;
    if (mapped != nullptr) {
      copy(part, mapped + done, bite, copied.stores);
    } else {
      const std::int32_t pid = segment_.member(member).probe.pid;
      const int failed = PeerMemory::read(pid, part, copied.from.address + done, bite);
      if (failed != 0) {
        policy_.report_unreachable(member, strerror(failed));
        return false;
      }
    }
    done += bite;
    if (policy_.is_broken()) return false;
  }
  return true;
}

bool PeerBuffers::await_fetched() {
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_) continue;
    const std::atomic<std::uint64_t>& fetched = segment_.member(member).progress.fetched;
    if (!wait_.await(fetched, entries_.number(), member)) return false;
  }
  memory_.trim();
  return true;
}

}  // namespace ivy::comm
