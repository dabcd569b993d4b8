// SPDX-License-Identifier: Apache-2.0
// Records what clients saw of one object of the store, and checks that history for linearizability
// (the algorithm of Wing and Gong, with memoization).
//
// An object consists of three keys and a queue; a request on several keys uses keys of one object.
// Each request takes effect at one moment between its invocation and its return. A request without
// an answer may take effect at any moment after its invocation, or never.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ivy::test {

inline constexpr std::uint64_t kOpen = ~std::uint64_t{0};  // Never returned.

enum class Kind {
  kSet,
  kSetOnce,
  kGet,
  kWaitGet,
  kWait,
  kCheck,
  kAdd,
  kCompareSet,
  kAppend,
  kDelete,
  kMultiGet,
  kMultiSet,
  kPush,
  kPop,
  kLength,
};

struct Operation {
  Kind kind = Kind::kGet;
  std::vector<std::size_t> keys;  // Of the object, 0 to 2; 3 in a wait or check is the queue.
  std::string value;
  std::optional<std::string> expected;  // For compare-set.
  std::int64_t delta = 0;
  bool is_torch = false;  // torch's compare-set has other rules.

  std::uint64_t invoked = 0;
  std::uint64_t returned = kOpen;
  // Its end. kNothing: rejected, cancelled or timed out, so it changed nothing.
  enum class End { kUnknown, kAnswered, kNothing } end = End::kUnknown;
  // The answer. `missing` means NotFound (get, pop, multi-get), some key missing (check), or
  // rejected because of the current value (set-once, add to a text).
  bool missing = false;
  bool stored = false;
  std::optional<std::string> got;
  std::vector<std::string> many;
  std::int64_t number = 0;
};

struct Object {
  std::array<std::optional<std::string>, 3> values;
  std::vector<std::string> queue;
};

// Applies the operation to the object. Returns false if the object cannot have given its answer.
bool happens(const Operation& operation, Object& object);

// Returns true if some order explains all operations. Accepts at most 63.
bool is_linearizable(std::vector<Operation> operations);

std::string describe(const std::vector<Operation>& operations);

}  // namespace ivy::test
