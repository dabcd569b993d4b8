// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/operation.h"

#include <cstddef>
#include <iterator>

namespace ivy::comm_status {
namespace {

constexpr std::string_view kOperations[] = {
#define IVY_OPERATION(number, enumerator, text, ...) text,
#include "proto/wire/operations.def"
};
constexpr int kNumbers[] = {
#define IVY_OPERATION(number, ...) number,
#include "proto/wire/operations.def"
};
static_assert(
    [] {
      for (int row = 0; const int number : kNumbers)
        if (number != row++) return false;
      return true;
    }(),
    "operations.def: the rows must be in the order of their numbers");
constexpr std::string_view kDtypes[] = {
    "none",
#define IVY_ELEMENT(name, number, enumerator, text, ...) text,
#include "proto/wire/operations.def"
};
constexpr std::string_view kReductions[] = {
    "none",
#define IVY_REDUCTION(name, number, enumerator, text, ...) text,
#include "proto/wire/operations.def"
};
constexpr std::string_view kPhases[] = {"starting",
                                        "waiting for the others",
                                        "copying within the host",
                                        "transferring between hosts",
                                        "finishing",
                                        "not started by the device yet",
                                        "on the device",
                                        "enqueued on the stream"};
static_assert(std::size(kPhases) == static_cast<std::size_t>(Phase::kIssued) + 1);

// The numbers come from the page, which a worker has written, so they may be anything.
template <std::size_t N, class Enum>
std::string_view listed(const std::string_view (&names)[N], Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "?";
}

}  // namespace

std::string_view name_of(Operation operation) { return listed(kOperations, operation); }
std::string_view name_of(Dtype dtype) { return listed(kDtypes, dtype); }
std::string_view name_of(Reduction reduction) { return listed(kReductions, reduction); }
std::string_view name_of(Phase phase) { return listed(kPhases, phase); }

std::uint32_t communicator_hash(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char byte : name) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 16777619u;
  }
  return hash;
}

}  // namespace ivy::comm_status
