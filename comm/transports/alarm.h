// What ends a wait besides its fulfilment: the death of a rank, the loss of a host, an error that
// another rank reported. Waits ask it in their slow part only.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "comm/failure.h"

namespace ivy::comm {

class Alarm {
 public:
  virtual ~Alarm() = default;

  // Changes whenever look() may have something new to say, and is a futex that is then woken; null:
  // there is no such word, and waits call look() every poll_interval().
  virtual const std::atomic<std::uint32_t>* word() const = 0;
  virtual std::chrono::milliseconds poll_interval() const = 0;

  // Why the communicator that owns this alarm cannot go on; nothing: it can.
  virtual std::optional<Failure> look() = 0;
};

}  // namespace ivy::comm
