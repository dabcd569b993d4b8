// SPDX-License-Identifier: Apache-2.0
// Hands the shared memory of communicators to the local ranks. The first rank that requests a
// segment creates it; after each member has received a descriptor, the table forgets it. Thread:
// the loop's. Lifetime: answers arrive later, but never after clear() or the table's destruction.
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
  // Limit of segments that some member has not requested yet; each holds a descriptor.
  static constexpr std::size_t kMaxWaiting = 1024;

  // The table keeps the descriptor: copy or send it before returning.
  using Answer = std::function<void(const Result<int>& fd, std::uint64_t bytes)>;

  explicit SegmentTable(boost::asio::io_context& loop) : loop_(loop) {}
  ~SegmentTable() { clear(); }
  SegmentTable(const SegmentTable&) = delete;
  SegmentTable& operator=(const SegmentTable&) = delete;

  // One of `local_size` local ranks requests a segment. Its pages are reserved in steps, so that a
  // large segment does not block the loop. A repeated request returns the same segment.
  void request(const control::Segment& segment, std::uint32_t slot, std::uint32_t local_size,
               Answer answer);
  // Starts another generation: segments of the previous one are no longer handed out.
  void clear();
  std::size_t waiting() const { return entries_.size(); }

 private:
  struct Entry;
  void reserve_step(const std::shared_ptr<Entry>& entry);
  void answer_all(const std::shared_ptr<Entry>& entry);
  void reject_all(const std::shared_ptr<Entry>& entry, const Error& error);

  boost::asio::io_context& loop_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace ivy
