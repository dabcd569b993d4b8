// SPDX-License-Identifier: Apache-2.0
// A worker's current operation in the comm runtime, as recorded in the status page (status_page.h).
// Written by libivycomm; read by the supervisor, even after the worker's death. Pure. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace ivy::comm_status {

// The rows of operations.def.
enum class Operation : std::uint8_t {
#define IVY_OPERATION(number, enumerator, ...) enumerator = number,
#include "proto/wire/operations.def"
};

namespace traits {
inline constexpr std::uint8_t kPlain = 0;
inline constexpr std::uint8_t kReduces = 1 << 0;  // Has a reduction.
inline constexpr std::uint8_t kNoData = 1 << 1;   // Has no elements.
inline constexpr std::uint8_t kUneven = 1 << 2;   // Has a count for each rank.
// The root sends; without this flag, a root receives.
inline constexpr std::uint8_t kFromRoot = 1 << 3;
// A rank may return before all ranks have called it.
inline constexpr std::uint8_t kLeftEarly = 1 << 4;
inline constexpr std::uint8_t kNotByNccl = 1 << 5;  // Uses host memory, even for data on a device.

inline constexpr std::uint8_t kOfOperations[] = {
#define IVY_OPERATION(number, enumerator, text, ...) __VA_ARGS__,
#include "proto/wire/operations.def"
};
}  // namespace traits

// Returns false for numbers that are not operations, which other processes may send.
constexpr bool has_trait(Operation operation, std::uint8_t trait) {
  const auto number = static_cast<std::size_t>(operation);
  return number < std::size(traits::kOfOperations) && (traits::kOfOperations[number] & trait) != 0;
}

// The page's numbers are those of operations.def plus one, because 0 is "none".
enum class Dtype : std::uint8_t {
  kNone = 0,
#define IVY_ELEMENT(name, number, enumerator, ...) enumerator = number + 1,
#include "proto/wire/operations.def"
};

enum class Reduction : std::uint8_t {
  kNone = 0,
#define IVY_REDUCTION(name, number, enumerator, ...) enumerator = number + 1,
#include "proto/wire/operations.def"
};

// The progress of an operation. It starts with kEntered. libivycomm then sets only kWaiting, for a
// message; the other phases up to kLeaving have no writer.
enum class Phase : std::uint8_t {
  kEntered = 0,       // Not waiting for other ranks yet.
  kWaiting = 1,       // Waiting for the other ranks to arrive.
  kMovingLocal = 2,   // Bytes move through shared memory.
  kMovingRemote = 3,  // Bytes move from host to host.
  kLeaving = 4,       // Done, but other ranks have not read this rank's data yet.
  // Phases that NCCL's profiler plug-in reports (comm/nccl_profiler):
  kQueued = 5,    // On the stream; the device has not started it.
  kOnDevice = 6,  // The device executes it.
  kIssued = 7,    // On the stream; NCCL does not report the device's progress.
};

enum class Outcome : std::uint8_t { kRunning = 0, kDone = 1, kFailed = 2 };

// One operation. 48 bytes without padding, so that it travels as six words.
struct OperationRecord {
  std::uint64_t sequence = 0;  // Number within the communicator, from 1.
  std::uint64_t count = 0;  // Elements, as in the call; for all_gatherv and the like, this rank's.
  std::uint64_t entered_ns = 0;  // CLOCK_MONOTONIC of this host.
  std::uint64_t ended_ns = 0;
  std::int32_t peer = -1;  // Root, or the peer of a send, as a rank in the job; -1 if none.
  std::uint32_t communicator_hash = 0;  // Hash of the name, because the row may have been reused.
  std::uint16_t communicator = 0;       // Row in the slot (status_page.h).
  Operation operation = Operation::kNone;
  Dtype dtype = Dtype::kNone;
  Reduction reduction = Reduction::kNone;
  Outcome outcome = Outcome::kRunning;
  std::uint16_t reserved = 0;

  bool operator==(const OperationRecord&) const = default;
};
static_assert(sizeof(OperationRecord) == 48);

// Returns the name, such as "all_reduce"; "?" for an unknown number.
std::string_view name_of(Operation operation);
// Returns the name, such as "f32"; "?" for an unknown number.
std::string_view name_of(Dtype dtype);
// Returns the name, such as "sum"; "?" for an unknown number.
std::string_view name_of(Reduction reduction);
// Returns the name, such as "waiting for the others"; "?" for an unknown number.
std::string_view name_of(Phase phase);

// 32-bit FNV-1a of a communicator's name.
std::uint32_t communicator_hash(std::string_view name);

}  // namespace ivy::comm_status
