// SPDX-License-Identifier: Apache-2.0
// Moves bytes from one rank to another of the same host: a ring in the segment's memory, which the
// sender reserves when it first has something to say. The receiver finds it by the segment's
// directory, also when the sender has gone.
//
// One writer, one reader; two counters that only grow. Thread: one at a time per end.
#pragma once

#include <memory>

#include "comm/transports/byte_stream.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Makes the ring and enters it into the directory. ResourceExhausted: no memory.
Result<std::unique_ptr<ByteSink>> make_ring(const RingPlace& place);
// Null: the sender has not made it yet.
Result<std::unique_ptr<ByteSource>> find_ring(const RingPlace& place);

// Both ends in one mapping, for two threads of a test: ThreadSanitizer knows memory by its address.
struct RingEnds {
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
};
Result<RingEnds> make_ring_in_one_mapping();

}  // namespace ivy::comm
