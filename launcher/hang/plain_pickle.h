// A reader of Python pickles that hold plain data only: None, bool, int, float, str, bytes, list,
// tuple and dict, and references to what was said before (the memo). Opcodes that name or call
// anything are errors: nothing is ever executed.
//
// Pure; thread: any. Source: Python's Lib/pickletools.py, protocols 0 to 5 (text opcodes of
// protocol 0 are not read).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

class PlainValue;
using PlainPointer = std::shared_ptr<const PlainValue>;

class PlainValue {
 public:
  enum class Kind { kNone, kBool, kInteger, kReal, kText, kList, kDictionary };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // kBool, kInteger; beyond 64 bits it is cut to the nearest.
  double real = 0;
  std::string text;  // kText: bytes and str alike.
  std::vector<PlainPointer>
      items;  // kList: lists and tuples. kDictionary: key, value, key, value...
  // For the reader: lists below it, itself included; and whether it may still grow.
  std::size_t depth = 0;
  bool is_closed = false;

  // The value of a key that is a text, the last one where there are several; null: none.
  const PlainValue* find(std::string_view key) const;
  // Returns the value as text: "[[1000], [2]]" with at most `limit` bytes.
  std::string shown(std::size_t limit) const;
};

struct PickleLimits {
  std::size_t values = 0;      // How many values may be made in all.
  std::size_t references = 0;  // References to values, in all.
  std::size_t depth = 0;       // Nesting of lists in lists.
};

// DataLoss says at which byte what could not be read. Values may be shared, never circular: a list
// that is referred to before it is finished is an error.
Result<PlainPointer> read_plain_pickle(std::string_view bytes, const PickleLimits& limits);

}  // namespace ivy
