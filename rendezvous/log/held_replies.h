// Replies that may not leave before what they speak of is on the disk: their own write, or one that
// a read has seen. In order, so that no client hears a later reply before an earlier one.
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
  // Until the journal has committed this many records. Never fewer than for those held before.
  void hold(std::uint64_t recorded, Replies& replies);
  // Those that may leave now.
  Replies release(std::uint64_t committed);
  // The log is lost: to each request that was held, this error; changes of watches are forgotten.
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
