// SPDX-License-Identifier: Apache-2.0
// The layout of the memory that one communicator's ranks of one host share.
//
//   header | member 0 | member 1 | ... | directory of rings | data of member 0 | data of member 1 |
//   ... | rings
//
// All of it is reserved at the start, except for the rings, whose memory is reserved when they are
// created. They may be in a separate file.
//
// Every line has one writer (the member in whose block it is), except for the header and the wake
// counts. Counters only grow, so nothing is ever reset and an old value cannot be mistaken for a
// new one. The data of a member is two eager areas, selected by the parity of the operation's
// number, followed by kSlotsPerMember slots for the chunks of larger operations.
//
// Pure layout; each field's comment has its memory order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/contract/failure.h"
#include "comm/transports/shm/peer_memory.h"

namespace ivy::comm {

inline constexpr std::uint32_t kSegmentMagic = 0x53795649;  // The bytes "IVyS", little-endian.
inline constexpr std::uint32_t kSegmentVersion = 9;
inline constexpr std::uint32_t kMembersMax = 1024;  // Ranks of one host in one communicator.

// Two cache lines: processors fetch lines in pairs.
inline constexpr std::size_t kLineBytes = 128;
// Bytes that fit in the entry's pair of lines in addition to the sequence number and the
// fingerprint.
inline constexpr std::size_t kInlineBytes = 104;
// Up to this size an operation is one exchange: all members write, then all read.
inline constexpr std::size_t kEagerBytes = 16 * 1024;
// Size of one chunk of a larger operation. A member's slots fit into a second-level cache of 2 MiB
// together with the buffers that pass through them.
inline constexpr std::size_t kSlotBytes = 256 * 1024;
inline constexpr std::size_t kSlotsPerMember = 4;

// The operation that a member is in. `sequence` is stored last, with release order.
struct alignas(kLineBytes) EntryLine {
  std::atomic<std::uint64_t> sequence;  // The operation's number, from 1.
  std::uint64_t fingerprint[2];
  std::uint8_t payload[kInlineBytes];
};
static_assert(sizeof(EntryLine) == kLineBytes);

// A member's progress with chunks, counted since the communicator was created. Each count is stored
// with release order after the memory that it describes.
struct alignas(kLineBytes) ProgressLine {
  std::atomic<std::uint64_t> filled;   // Chunks whose slot holds this member's data.
  std::atomic<std::uint64_t> reduced;  // Chunks whose slot holds this member's results.
  std::atomic<std::uint64_t> drained;  // Chunks that this member no longer reads.
  // The last operation in which this member has read others' own memory completely.
  std::atomic<std::uint64_t> fetched;
};

struct alignas(kLineBytes) SleepLine {
  // If not 0, this member may be in futex_wait on `wake_count`. In collectives it is kForAnyMember
  // or, if members are overloaded, the awaited member + 1 or kForArrivals.
  std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> wake_count;  // A futex; other members add 1 and wake.
};

// Added to mail's `asleep` by a thread that polls the rings. While one does, no other thread needs
// to be woken for messages.
inline constexpr std::uint32_t kPolling = std::uint32_t{1} << 16;

inline constexpr std::uint32_t kForArrivals = ~std::uint32_t{0};
inline constexpr std::uint32_t kForAnyMember = kForArrivals - 1;

inline constexpr std::uint32_t kIsHere = 1;
inline constexpr std::uint32_t kHasLeft = 2;

struct MemberBlock {
  EntryLine entry[2];  // Selected by the parity of the operation's number.
  ProgressLine progress;
  SleepLine sleep;  // Members sleep here in collectives.
  // Members sleep here in messages; `asleep` counts threads, and kPolling for each that polls.
  SleepLine mail;
  alignas(kLineBytes) std::atomic<std::uint32_t> attached;  // 0, then kIsHere, then kHasLeft.
  std::int32_t pid;
  // The last operation of the communicator that this member has entered.
  std::atomic<std::uint64_t> operation;
  alignas(kLineBytes) Probe probe;  // Written before `attached` is, which publishes it.
  // PeerMemory's bits for all other members, and kCapabilitiesKnown.
  std::atomic<std::uint64_t> capabilities;
  // The failure that the member has found. Valid once the header's failure_state names the member,
  // so that no member waits for one that dies during the write.
  alignas(kLineBytes) Failure failure;
};
inline constexpr std::uint64_t kCapabilitiesKnown = 4;

// The ring from one member to another: entry [from][to].
struct RingEntry {
  // From 1; 0 if there is none. Stored when its memory is reserved.
  std::atomic<std::uint32_t> number;
};

// Must be a power of two, because positions are masked.
inline constexpr std::size_t kRingBytes = std::size_t{256} << 10;
// Enough for all ranks of a large host with a few peers each; there would not be enough memory for
// all pairs of very many ranks.
inline constexpr std::size_t kRingsMax = 32'768;

// From this size on, a message that finds no room in the ring is lent. Copying half a ring in and
// out is cheaper than a copy through the kernel.
inline constexpr std::size_t kMinLentBytes = std::size_t{64} << 10;

// The bytes from one member to another. The memory remains when its writer exits.
struct RingMemory {
  alignas(kLineBytes) std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> lent;        // The address of the last loan; 0 if it was revoked.
  std::atomic<std::uint32_t> wants_room;  // 1 while the writer waits for more room.
  alignas(kLineBytes) std::atomic<std::uint64_t> read;
  // Twice the number of loans that have ended, plus 1 if the last one was declined.
  std::atomic<std::uint64_t> loans_ended;
  alignas(kLineBytes) std::uint8_t bytes[kRingBytes];
};

struct SegmentHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t member_count;
  std::uint32_t slot_bytes;
  std::uint64_t total_bytes;
  // protocol_identity() of the first member, set by compare-exchange from 0.
  std::atomic<std::uint64_t> protocol;
  // Number of members that sleep or are about to; read after every publication.
  alignas(kLineBytes) std::atomic<std::uint32_t> sleepers;
  // Number of entries ever published if members are overloaded: a member that waits for all of them
  // sleeps once, until the last one arrives.
  alignas(kLineBytes) std::atomic<std::uint64_t> arrivals;
  // 0 if the communicator is not broken, otherwise 1 plus the member whose block has the failure.
  // Set by compare-exchange from 0, with release order after the failure was written.
  alignas(kLineBytes) std::atomic<std::uint32_t> failure_state;
  // When a member of this host last queried the job's store, and for which operation; see
  // SharedGroup::take_turn().
  alignas(kLineBytes) std::atomic<std::uint64_t> probe_turn;
  alignas(kLineBytes) std::atomic<std::uint32_t> rings_made;
};

struct SegmentGeometry {
  std::uint32_t member_count = 1;

  std::size_t member_offset(std::size_t member) const {
    return round_up(sizeof(SegmentHeader), 4096) + member * sizeof(MemberBlock);
  }
  std::size_t ring_offset(std::size_t from, std::size_t to) const {
    return member_offset(member_count) + (from * member_count + to) * sizeof(RingEntry);
  }
  std::size_t data_offset(std::size_t member) const {
    return round_up(ring_offset(member_count, 0), 4096) + member * kDataBytes;
  }
  // Returns the initial size; the rings are added at the end.
  std::size_t total_bytes() const { return data_offset(member_count); }
  std::size_t ring_count() const {
    return std::min(kRingsMax, std::size_t{member_count} * (member_count - 1));
  }
  std::size_t rings_bytes() const { return ring_count() * kRingStride; }
  std::size_t rings_offset() const { return round_up(total_bytes(), kLargestPage); }

  // Each ring is mapped on its own, so it starts at a multiple of the page size, which is up to
  // 64 KiB on Arm.
  static constexpr std::size_t kLargestPage = 64u << 10;
  static constexpr std::size_t kRingStride =
      (sizeof(RingMemory) + kLargestPage - 1) / kLargestPage * kLargestPage;
  static constexpr std::size_t kDataBytes = 2 * kEagerBytes + kSlotsPerMember * kSlotBytes;
  static constexpr std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) / step * step;
  }
};

}  // namespace ivy::comm
