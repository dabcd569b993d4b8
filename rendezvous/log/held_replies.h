// Holds replies until the disk has the write that they depend on: their own write, or one that a
// read has seen. It keeps their order, so that no client gets a later reply before an earlier one.
//
// Pure. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

class HeldReplies {
 public:
  // Holds the replies until the journal has committed this many records, never fewer than for
  // replies held before.
  void hold(std::uint64_t recorded, Replies& replies);
  // Returns the replies that may leave now.
  Replies release(std::uint64_t committed);
  // After the log is lost: answers each held request with this error, and drops changes of watches.
  Replies fail(const Error& error);
  bool empty() const { return held_.empty(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Held {
    std::uint64_t recorded = 0;
    Reply reply;
  };
  std::deque<Held> held_;
  std::size_t bytes_ = 0;
};

}  // namespace ivy::store
