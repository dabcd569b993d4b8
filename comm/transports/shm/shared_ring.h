// SPDX-License-Identifier: Apache-2.0
// A stream of bytes between two ranks of a host: a ring in the segment's memory, which the sender
// reserves for its first message. The receiver finds it through the segment's directory, even after
// the sender has exited.
//
// There is one writer and one reader, and two counters that only grow. Thread: one at a time per
// end.
#pragma once

#include <memory>

#include "comm/transports/byte_stream.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Creates the ring and enters it into the directory. Fails with ResourceExhausted if there is no
// memory.
Result<std::unique_ptr<ByteSink>> make_ring(const RingLocation& location);
// Returns null if the sender has not created it yet.
Result<std::unique_ptr<ByteSource>> find_ring(const RingLocation& location);

// Both ends in one mapping, for two threads of a test, because ThreadSanitizer identifies memory by
// its address.
struct RingEnds {
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
};
Result<RingEnds> make_ring_in_one_mapping();

}  // namespace ivy::comm
