// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstddef>

#include "comm/collectives/selector.h"
#include "comm/contract/device_log.h"
#include "comm/contract/entered_operations.h"
#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/contract/protocol.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/join/wait_graph.h"
#include "comm/transports/shm/shared_layout.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/wire/handshake.h"

namespace ivy::comm {
namespace {

// A change that is not visible below, such as a new meaning of the same bytes, must increase a
// version: kSegmentVersion, kPeerWireVersion, or kHandshakeVersion for the handshake and the
// store's protocol.
const std::uint64_t kParts[] = {
    kSegmentVersion,
    sizeof(SegmentHeader),
    offsetof(SegmentHeader, sleepers),
    offsetof(SegmentHeader, failure_state),
    offsetof(SegmentHeader, rings_made),
    sizeof(MemberBlock),
    sizeof(EntryLine),
    sizeof(ProgressLine),
    sizeof(SleepLine),
    sizeof(RingEntry),
    sizeof(RingMemory),
    sizeof(BufferLocation),
    kMembersMax,
    kInlineBytes,
    kEagerBytes,
    kSlotBytes,
    kSlotsPerMember,
    kRingBytes,
    SegmentGeometry::kRingStride,
    kRingsMax,
    kPeerWireVersion,
    kHandshakeVersion,
    kMessageMagic,
    sizeof(MessageHeader),
    sizeof(Failure),
    sizeof(Fingerprint),
    sizeof(EnteredOperations),
    sizeof(WaitRecord),
    sizeof(DeviceRecord),
    kDtypeCount,
    kReduceOpCount,
    static_cast<std::uint64_t>(std::endian::native),
};

}  // namespace

std::uint64_t protocol_identity() {
  static const std::uint64_t identity = [] {
    std::uint64_t hash = selector_fingerprint();
    for (const std::uint64_t part : kParts) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
    return hash | 1;
  }();
  return identity;
}

}  // namespace ivy::comm
