// What ends a wait besides its fulfilment: the death of a rank, the loss of a host, an error that
// another rank reported. Waits ask it in their slow part only.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "comm/contract/failure.h"

namespace ivy::comm {

class Alarm {
 public:
  virtual ~Alarm() = default;

  // Changes whenever look() may have something new to say, and is a futex that is then woken; null:
  // there is no such word, and waits call look() every poll_interval().
  virtual const std::atomic<std::uint32_t>* word() const = 0;
  virtual std::chrono::milliseconds poll_interval() const = 0;

  // Why the communicator that owns this alarm cannot go on; nothing: it can. A rank that has
  // finalized is missed only by those who wait for it: `waited_for`, a rank in the communicator.
  virtual std::optional<Failure> look(std::int32_t waited_for) = 0;
  std::optional<Failure> look() { return look(kAnyone); }
  // The same, however short ago it was asked last: a peer hung up and may have said why.
  virtual std::optional<Failure> look_closely(std::int32_t waited_for) { return look(waited_for); }
  // Has that rank of the communicator finalized, so long ago that its last operation needs no
  // patience any more? False also where nobody here can know. Cheap.
  virtual bool has_left(std::int32_t rank) = 0;
  // A connection's end is known a moment before its reason: so long whoever found it asks for that,
  // and so often.
  static constexpr std::chrono::milliseconds kVerdictTime{300};
  static constexpr std::chrono::milliseconds kVerdictStep{2};
  static constexpr std::int32_t kAnyone = -1;
  static constexpr std::int32_t kNobody = -2;  // Whoever has left is missed by none.
};

}  // namespace ivy::comm
