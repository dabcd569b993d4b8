// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/peer_buffers.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace ivy::comm {
namespace {

// Limit of the bytes read in one step, so that a failure elsewhere can end a long copy.
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

}  // namespace

std::optional<std::uint64_t> PeerBuffers::detect_capabilities() {
  if (!entries_.await_all()) return std::nullopt;
  std::uint64_t works = PeerMemory::kCanRead | PeerMemory::kCanMap;
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_) continue;
    works &= memory_.try_out(segment_.member(member).probe, segment_.descriptor());
  }
  wait_.publish(segment_.member(self_).capabilities, works | kCapabilitiesKnown);
  for (std::uint32_t member = 0; member < size_; ++member) {
    const std::atomic<std::uint64_t>& peer_capabilities = segment_.member(member).capabilities;
    if (!wait_.await(peer_capabilities, kCapabilitiesKnown, member)) return std::nullopt;
    works &= peer_capabilities.load(std::memory_order_relaxed);
  }
  capabilities_ = works;
  return works;
}

bool PeerBuffers::map(std::uint32_t member, const BufferLocation& location,
                      const std::uint8_t** mapped) {
  *mapped = nullptr;
  if (member == self_) {
    *mapped = reinterpret_cast<const std::uint8_t*>(location.address);
  } else if (location.is_registered() && (capabilities_.value_or(0) & PeerMemory::kCanMap) != 0) {
    *mapped = memory_.map(segment_.member(member).probe.pid, location);
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
    const std::size_t chunk_bytes = std::min(kChunkBytes, copied.bytes - done);
    std::uint8_t* const part = static_cast<std::uint8_t*>(copied.to) + done;
    if (mapped != nullptr) {
      copy(part, mapped + done, chunk_bytes, copied.stores);
    } else {
      const std::int32_t pid = segment_.member(member).probe.pid;
      const int failed = PeerMemory::read(pid, part, copied.from.address + done, chunk_bytes);
      if (failed != 0) {
        policy_.report_unreachable(member, strerror(failed));
        return false;
      }
    }
    done += chunk_bytes;
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
