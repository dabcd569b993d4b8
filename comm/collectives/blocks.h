// SPDX-License-Identifier: Apache-2.0
// The parts of a buffer, one for each rank (or member), in order. Equal parts, the usual case, need
// no allocation: an operation on a few bytes takes less time than malloc.
//
// Pure; thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ivy::comm {

// A rank's block in a buffer of blocks, in bytes.
struct Block {
  std::size_t offset = 0;
  std::size_t bytes = 0;

  static Block of(std::size_t begin, std::size_t length) { return {begin, length}; }
  std::size_t length() const { return bytes; }
};

// A rank's part of a buffer that is reduced, in elements.
struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;

  static Range of(std::size_t begin, std::size_t length) { return {begin, length}; }
  std::size_t length() const { return count; }
};

template <class Part>
class Parts {
 public:
  Parts() = default;
  Parts(std::vector<Part> list)
      : size_(list.size()), list_(std::move(list)) {}  // NOLINT: meant to convert.
  // Returns `size` parts of length `each`, back to back.
  static Parts even(std::size_t size, std::size_t each) {
    Parts parts;
    parts.size_ = size;
    parts.each_ = each;
    return parts;
  }

  std::size_t size() const { return size_; }
  Part operator[](std::size_t index) const {
    return list_.empty() ? Part::of(index * each_, each_) : list_[index];
  }
  std::size_t longest() const {
    std::size_t longest = each_;
    for (const Part& part : list_) longest = std::max(longest, part.length());
    return longest;
  }
  std::size_t total() const {
    std::size_t total = size_ * each_;
    for (const Part& part : list_) total += part.length();
    return total;
  }
  std::vector<Part> list() const {
    if (!list_.empty()) return list_;
    std::vector<Part> list(size_);
    for (std::size_t i = 0; i < size_; ++i) list[i] = (*this)[i];
    return list;
  }

 private:
  std::size_t size_ = 0;
  std::size_t each_ = 0;  // The length of equal parts, or 0 if list_ has the parts.
  std::vector<Part> list_;
};

using Blocks = Parts<Block>;
using Ranges = Parts<Range>;

}  // namespace ivy::comm
