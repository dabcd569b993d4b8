// Bytes from one rank to another of the same host: a ring in memory of its own, which the sender
// makes when it first has something to say. The receiver finds it in the segment's directory.
//
// One writer, one reader; two counters that only grow. Thread: one at a time per end.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/transports/byte_stream.h"
#include "comm/transports/shared_layout.h"
#include "proto/status.h"

namespace ivy::comm {

inline constexpr std::size_t kRingBytes = std::size_t{256} << 10;  // A power of two.

struct RingMemory {
  alignas(kLineBytes) std::atomic<std::uint64_t> written;
  alignas(kLineBytes) std::atomic<std::uint64_t> read;
  alignas(kLineBytes) std::uint8_t bytes[kRingBytes];
};

// Makes the ring and enters it into the directory. ResourceExhausted: no memory.
Result<std::unique_ptr<ByteSink>> make_ring(RingEntry& entry);
// Null: the sender has not made it yet.
Result<std::unique_ptr<ByteSource>> find_ring(RingEntry& entry);

// Both ends in one mapping, for two threads of a test: ThreadSanitizer knows memory by its address.
struct RingEnds {
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
};
Result<RingEnds> make_ring_in_one_mapping();

}  // namespace ivy::comm
