// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace ivy::comm::nccl {

// A queue that keeps its memory: std::deque allocates and frees every few elements, which costs
// measurable time in an operation on a device. Thread: one at a time.
template <class T>
class KeptQueue {
 public:
  bool empty() const { return size() == 0; }
  std::size_t size() const { return all_.size() - first_; }
  T& operator[](std::size_t index) { return all_[first_ + index]; }
  T& front() { return all_[first_]; }
  const T& front() const { return all_[first_]; }
  auto begin() { return all_.begin() + static_cast<std::ptrdiff_t>(first_); }
  auto end() { return all_.end(); }

  void push_back(T&& one) {
    // Instead of growing, moves the remaining elements to the front if they are less than half.
    if (all_.size() == all_.capacity() && first_ > size()) {
      all_.erase(all_.begin(), begin());
      first_ = 0;
    }
    all_.push_back(std::move(one));
  }
  void pop_front() {
    front() = T();
    if (++first_ < all_.size()) return;
    all_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> all_;
  std::size_t first_ = 0;
};

}  // namespace ivy::comm::nccl
