// SPDX-License-Identifier: Apache-2.0
// Inputs, expected results and buffers of the matrix of calls.
//
// Numbers round, saturate and overflow; some are infinite or NaN. The reference combines them in
// the order that host_collectives.h promises (ranks of a host, then hosts; only the last step
// rounds), so results are compared bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "comm/contract/ivycomm.h"
#include "tests/comm/reduce_reference.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {

// Data repeat with a prime period, so that the reference is short and a misplaced piece is
// detected: no chunk size is a multiple of it.
constexpr std::size_t kPeriod = 251;

std::uint32_t mix(std::uint32_t value);
double factor_of(int rank);  // For PREMUL_SUM.

// Type, reduction and seed of the data of one call.
struct Kind {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t seed = 0;

  std::size_t element() const { return element_bytes(dtype); }
  auto key() const { return std::tuple(dtype, op, seed); }
};

// Returns one period of `count` elements of a rank's input.
Bytes input_of(int rank, const Kind& kind, std::size_t count = kPeriod);

// One period of every input and result in a world. Keeps those of the last kind.
class Expected {
 public:
  explicit Expected(Hosts hosts) : hosts_(std::move(hosts)) {}

  const Bytes& input(int rank, const Kind& kind);
  const Bytes& reduced(const Kind& kind);            // Over all ranks.
  const Bytes& scanned(int last, const Kind& kind);  // Over ranks up to `last`; -1 means none.

 private:
  void begin(const Kind& kind);
  Bytes combine(const Kind& kind, int first, int ranks, Form output);

  const Hosts hosts_;
  Kind kind_;
  std::map<int, Bytes> inputs_;
  std::map<int, Bytes> scanned_;
  Bytes reduced_;
};

enum class BufferMode : std::uint8_t { kOut, kInPlace, kUnaligned };
constexpr BufferMode kModes[] = {BufferMode::kOut, BufferMode::kInPlace, BufferMode::kUnaligned};

// Selects the buffers of this rank that are registered, and their communicator.
enum class Registered : std::uint8_t { kNone, kAll, kEverySecond };
struct Registration {
  Registered which = Registered::kNone;
  ivy_comm* comm = nullptr;
};
Registration& registration();

// Plain or registered memory, filled with canaries.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;

  std::uint8_t* data() { return registered_ != nullptr ? registered_ : plain_.data(); }
  const std::uint8_t* begin() const { return const_cast<Memory*>(this)->data(); }
  const std::uint8_t* end() const { return begin() + bytes_; }

 private:
  const std::size_t bytes_;
  std::uint8_t* registered_ = nullptr;
  Bytes plain_;
};

// A user's buffer with guards on both sides.
class Buffer {
 public:
  Buffer(std::size_t bytes, BufferMode mode);

  std::uint8_t* data() { return memory_.data() + skip_; }
  // Writes `count` elements at element `at`, from element `from` of a periodic sequence.
  void fill(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
            std::size_t from = 0);
  bool holds(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
             std::size_t from = 0);
  bool is_guarded() const;
  // Returns true if no byte in this range has changed.
  bool is_untouched(std::size_t begin, std::size_t end) const;

 private:
  std::size_t bytes_;
  std::size_t skip_;
  Memory memory_;
};

}  // namespace ivy::comm::test
