// SPDX-License-Identifier: Apache-2.0
// What clients saw of one object of the store, and whether a store that does one thing after the
// other could have shown it to them (Wing and Gong's search, with a memory of where it has been).
//
// An object is three keys and a queue; requests on several keys are on one object. It is as if each
// request happened at one moment between its invocation and its return; one without an answer may
// have happened at any moment after its invocation, or never.
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
  std::vector<std::size_t> keys;  // Of the object, 0 to 2; 3 in a wait or check: the queue.
  std::string value;
  std::optional<std::string> expected;  // Of compare-set.
  std::int64_t delta = 0;
  bool is_torch = false;  // Its compare-set has a way of its own.

  std::uint64_t invoked = 0;
  std::uint64_t returned = kOpen;
  // How it ended. kNothing: rejected, cancelled or too late, so it changed nothing.
  enum class End { kUnknown, kAnswered, kNothing } end = End::kUnknown;
  // The answer. `missing`: NotFound (get, pop, multi-get), not all there (check), or a rejection
  // because of what was there (set-once, add to a text).
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

// Does it to the object. False when the answer could not have come from it.
bool happens(const Operation& operation, Object& object);

// Whether some order explains all of them. At most 63 operations.
bool is_linearizable(std::vector<Operation> operations);

std::string describe(const std::vector<Operation>& operations);

}  // namespace ivy::test
