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

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // How many bytes were taken; 0: none can be now.
  virtual std::size_t write_some(const void* bytes, std::size_t count) = 0;
  // False: everything that was written has been read, so that nobody has to be told of it.
  virtual bool has_unread() const { return true; }
  virtual StreamState state() const = 0;
  // A socket to poll for writing; -1: the reader rings this rank's wakes instead.
  virtual int descriptor() const = 0;
  // Lends these bytes, one loan at a time; the reader has to be told by bytes that are written
  // after this. False: so many bytes are to be written, or the stream cannot lend.
  virtual bool lend(const void* /*bytes*/, std::size_t /*count*/) { return false; }
  // The bytes may change from now on: who still reads them throws away what it has.
  virtual void revoke() {}
  // State of the last loan.
  virtual LoanState loan() const { return LoanState::kDeclined; }
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t read_some(void* bytes, std::size_t count) = 0;
  // True once after the writer has started to wait for an action of this reader: free space, or a
  // loan's end.
  virtual bool take_writer_waits() { return true; }
  virtual StreamState state() const = 0;
  virtual int descriptor() const = 0;
  // Address of the loan's bytes in the writer's memory; 0: it was revoked. Bytes read are valid
  // only if this is still not 0 afterwards.
  virtual std::uint64_t lent() const { return 0; }
  virtual void end_loan(LoanState /*how*/) {}
};

}  // namespace ivy::comm
