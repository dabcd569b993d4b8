// One direction of bytes between two ranks, without blocking: a ring in shared memory or a socket.
//
// Thread: one at a time per end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ivy::comm {

enum class StreamState : std::uint8_t { kOpen, kBroken };

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // How many bytes were taken; 0: none can be now.
  virtual std::size_t write_some(const void* bytes, std::size_t count) = 0;
  virtual StreamState state() const = 0;
  // A socket to poll for writing; -1: the reader rings this rank's doorbell instead.
  virtual int descriptor() const = 0;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t read_some(void* bytes, std::size_t count) = 0;
  virtual StreamState state() const = 0;
  virtual int descriptor() const = 0;
};

}  // namespace ivy::comm
