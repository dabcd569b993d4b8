// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

namespace ivy::test {
namespace {

std::optional<std::int64_t> number_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool all_exist(const Operation& operation, const Object& object) {
  return std::all_of(operation.keys.begin(), operation.keys.end(), [&](std::size_t key) {
    return key == 3 ? !object.queue.empty() : object.values[key].has_value();
  });
}

bool adds(const Operation& operation, Object& object, bool answered) {
  std::optional<std::string>& value = object.values[operation.keys[0]];
  const std::optional<std::int64_t> before = value ? number_of(*value) : std::int64_t{0};
  if (!before) return !answered || operation.missing;
  if (answered && (operation.missing || *before + operation.delta != operation.number))
    return false;
  value = std::to_string(*before + operation.delta);
  return true;
}

bool compares(const Operation& operation, Object& object, bool answered) {
  std::optional<std::string>& value = object.values[operation.keys[0]];
  if (operation.is_torch) {
    // In torch, an empty expectation also matches a missing key. A failed compare on a missing key
    // returns the expected value.
    const std::string expected = operation.expected.value_or("");
    if (value.value_or("") == expected && (value || expected.empty())) value = operation.value;
    return !answered || operation.got == value.value_or(expected);
  }
  const bool equal = value == operation.expected;
  if (equal) value = operation.value;
  return !answered || (operation.stored == equal && operation.got == value);
}

bool pops(const Operation& operation, Object& object, bool answered) {
  if (object.queue.empty()) return !answered || operation.missing;
  if (answered && (operation.missing || operation.got != object.queue.front())) return false;
  object.queue.erase(object.queue.begin());
  return true;
}

bool reads_many(const Operation& operation, const Object& object, bool answered) {
  if (!answered) return true;
  if (!all_exist(operation, object)) return operation.missing;
  if (operation.missing || operation.many.size() != operation.keys.size()) return false;
  for (std::size_t i = 0; i < operation.keys.size(); ++i)
    if (object.values[operation.keys[i]] != operation.many[i]) return false;
  return true;
}

bool sets_once(const Operation& operation, Object& object, bool answered) {
  std::optional<std::string>& value = object.values[operation.keys[0]];
  const bool rejected = value && *value != operation.value;
  if (!value) value = operation.value;
  return !answered || operation.missing == rejected;
}

class Search {
 public:
  explicit Search(std::vector<Operation> operations) : operations_(std::move(operations)) {}

  bool run() { return go_on(0, Object()); }

 private:
  bool go_on(std::uint64_t done, const Object& object) {
    std::uint64_t first_return = kOpen;
    bool finished = true;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if ((done >> i & 1) != 0 || operations_[i].end != Operation::End::kAnswered) continue;
      finished = false;
      first_return = std::min(first_return, operations_[i].returned);
    }
    if (finished) return true;
    if (!seen_.insert(picture(done, object)).second) return false;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if ((done >> i & 1) != 0 || operations_[i].invoked > first_return) continue;
      Object next = object;
      if (happens(operations_[i], next) && go_on(done | std::uint64_t{1} << i, next)) return true;
    }
    return false;
  }

  static std::string picture(std::uint64_t done, const Object& object) {
    std::string text = std::to_string(done);
    for (const auto& value : object.values) text += value ? "=" + *value + "\n" : "-";
    for (const std::string& item : object.queue) text += "+" + item + "\n";
    return text;
  }

  const std::vector<Operation> operations_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

bool happens(const Operation& operation, Object& object) {
  const bool answered = operation.end == Operation::End::kAnswered;
  const std::size_t key = operation.keys.empty() ? 0 : operation.keys[0];
  switch (operation.kind) {
    case Kind::kSet:
      object.values[key] = operation.value;
      return true;
    case Kind::kSetOnce:
      return sets_once(operation, object, answered);
    case Kind::kGet:
      return !answered ||
             (operation.missing ? !object.values[key] : object.values[key] == operation.got);
    case Kind::kWaitGet:
      return !answered || (object.values[key] && object.values[key] == operation.got);
    case Kind::kWait:
      return !answered || all_exist(operation, object);
    case Kind::kCheck:
      return !answered || all_exist(operation, object) == !operation.missing;
    case Kind::kAdd:
      return adds(operation, object, answered);
    case Kind::kCompareSet:
      return compares(operation, object, answered);
    case Kind::kAppend:
      object.values[key] = object.values[key].value_or("") + operation.value;
      return !answered || operation.number < 0 ||
             operation.number == static_cast<std::int64_t>(object.values[key]->size());
    case Kind::kDelete: {
      const bool existed = object.values[key].has_value();
      object.values[key].reset();
      return !answered || operation.number == (existed ? 1 : 0);
    }
    case Kind::kMultiGet:
      return reads_many(operation, object, answered);
    case Kind::kMultiSet:
      for (std::size_t i = 0; i < operation.keys.size(); ++i)
        object.values[operation.keys[i]] = operation.value + "." + std::to_string(i);
      return true;
    case Kind::kPush:
      object.queue.push_back(operation.value);
      return !answered || operation.number < 0 ||
             operation.number == static_cast<std::int64_t>(object.queue.size());
    case Kind::kPop:
      return pops(operation, object, answered);
    case Kind::kLength:
      return !answered || operation.number == static_cast<std::int64_t>(object.queue.size());
  }
  return false;
}

bool is_linearizable(std::vector<Operation> operations) {
  std::erase_if(operations,
                [](const Operation& one) { return one.end == Operation::End::kNothing; });
  // Sorted by their ends, because this order explains most histories without backtracking.
  std::stable_sort(operations.begin(), operations.end(),
                   [](const Operation& a, const Operation& b) { return a.returned < b.returned; });
  EXPECT_LT(operations.size(), 64u);
  return Search(std::move(operations)).run();
}

std::string describe(const std::vector<Operation>& operations) {
  static constexpr std::array<const char*, 15> kNames = {
      "set",    "set_once", "get",       "wait_get",  "wait", "check", "add",   "compare_set",
      "append", "delete",   "multi_get", "multi_set", "push", "pop",   "length"};
  std::string text;
  for (const Operation& one : operations) {
    text += std::to_string(one.invoked) + ".." +
            (one.returned == kOpen ? "" : std::to_string(one.returned)) + " " +
            kNames[static_cast<std::size_t>(one.kind)];
    for (const std::size_t key : one.keys) text += " k" + std::to_string(key);
    if (!one.value.empty()) text += " value " + one.value;
    if (one.expected) text += " expects " + *one.expected;
    if (one.end == Operation::End::kNothing) text += " -> nothing";
    if (one.end == Operation::End::kAnswered) {
      text += " ->" + std::string(one.missing ? " missing" : "") + (one.stored ? " stored" : "");
      if (one.got) text += " " + *one.got;
      for (const std::string& value : one.many) text += " " + value;
      text += " #" + std::to_string(one.number);
    }
    text += "\n";
  }
  return text;
}

}  // namespace ivy::test
