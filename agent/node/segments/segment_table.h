// SPDX-License-Identifier: Apache-2.0
// Hands the shared memory of communicators to the local ranks: the first rank that asks has it
// made, each of its members gets a descriptor of it, then its name is forgotten. Thread: the
// loop's. Lifetime: answers come later, but none after clear() or the table's end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/control_wire.h"

namespace ivy {

class SegmentTable {
 public:
  // Segments that some member has not asked for yet. Each holds a descriptor.
  static constexpr std::size_t kMaxWaiting = 1024;

  // The table keeps the descriptor: copy or send it immediately.
  using Answer = std::function<void(const Result<int>& fd, std::uint64_t bytes)>;

  explicit SegmentTable(boost::asio::io_context& loop) : loop_(loop) {}
  ~SegmentTable() { clear(); }
  SegmentTable(const SegmentTable&) = delete;
  SegmentTable& operator=(const SegmentTable&) = delete;

  // One of `local_size` local ranks asks. The pages are taken in steps, so that a large segment
  // does not keep the loop from its other work. A rank that asks again gets the same segment again.
  void ask(const control::Segment& segment, std::uint32_t slot, std::uint32_t local_size,
           Answer answer);
  // Starts another generation: segments of the last one are no longer handed out.
  void clear();
  std::size_t waiting() const { return entries_.size(); }

 private:
  struct Entry;
  void reserve_step(const std::shared_ptr<Entry>& entry);
  void answer_all(const std::shared_ptr<Entry>& entry);
  void refuse_all(const std::shared_ptr<Entry>& entry, const Error& error);

  boost::asio::io_context& loop_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace ivy
