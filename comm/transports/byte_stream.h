// SPDX-License-Identifier: Apache-2.0
// One direction of bytes between two ranks, without blocking: a ring in shared memory or a socket.
//
// A ring can also lend: its writer publishes the address of the bytes in its own memory, the reader
// copies them directly from there (peer_memory.h), and the writer waits for that. A reader that is
// not permitted to do so declines, and the bytes are sent through the ring.
//
// Thread: one at a time per end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ivy::comm {

enum class StreamState : std::uint8_t { kOpen, kBroken };
enum class LoanState : std::uint8_t { kOpen, kRead, kDeclined };

// Implemented by RingSink (shared_ring.cc) and SocketSink (socket_stream.cc).
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Returns the number of bytes written; 0 if there is no room.
  virtual std::size_t write_some(const void* bytes, std::size_t count) = 0;
  // Returns false if everything written has been read, so that the reader need not be notified.
  virtual bool has_unread() const { return true; }
  virtual StreamState state() const = 0;
  // Returns a socket to poll for writing, or -1 if the reader wakes this rank instead
  // (message_rings.h).
  virtual int descriptor() const = 0;
  // Lends these bytes, one loan at a time; bytes written afterwards announce it to the reader.
  // Returns false if the bytes must be written instead.
  virtual bool lend(const void* /*bytes*/, std::size_t /*count*/) { return false; }
  // Revokes the loan, whose bytes may change from now on; the reader discards what it has read of
  // them.
  virtual void revoke() {}
  // Returns the state of the last loan.
  virtual LoanState loan() const { return LoanState::kDeclined; }
};

// Implemented by RingSource and SocketSource, in the same files.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t read_some(void* bytes, std::size_t count) = 0;
  // Returns, once, whether the writer waits for this reader: for free space or the end of a loan.
  virtual bool take_writer_waits() { return true; }
  virtual StreamState state() const = 0;
  virtual int descriptor() const = 0;
  // Returns the address of the loan's bytes in the writer's memory, or 0 if the loan was revoked.
  // Bytes read are valid only if this is still not 0 afterwards.
  virtual std::uint64_t lent() const { return 0; }
  virtual void end_loan(LoanState /*how*/) {}
};

}  // namespace ivy::comm
