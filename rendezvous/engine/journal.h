// The interface by which contents leave the engine to outlive the process: change by change, and as
// a snapshot piece by piece. Pure. Thread: the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/engine/requests.h"

namespace ivy::store {

// Keeps the engine's changes, so that they outlive the process (write_ahead_log.h). The engine
// records changes of its contents, not of waits, watches and clients: these end with their
// connections.
class Journal {
 public:
  virtual ~Journal() = default;
  // kLess is for requests that only remove (delete, pop) or release members (a barrier): they may
  // use room that is reserved from requests that write more.
  enum class Use { kMore, kLess };
  // True if this many bytes more can be kept; the engine asks before every request that changes
  // something. Only a new generation is recorded without asking.
  virtual bool has_room(std::size_t bytes, Use use) = 0;
  // Records the effects (effect.h) of one request or of a new generation: all of them or none.
  virtual void record(std::string effects) = 0;
};

// The progress of a snapshot: it holds the sections before this one, and keys up to last_key.
// Contents without a section are in its first piece.
struct SnapshotCursor {
  enum class Section : std::uint8_t { kValues, kQueues, kBarriers };
  bool has_begun = false;
  std::uint32_t space = 0;
  Section section = Section::kValues;
  std::optional<std::string> last_key;
  bool done() const { return space == kSpaces; }
  void next_section() {
    last_key.reset();
    space += section == Section::kBarriers ? 1 : 0;
    section = section == Section::kBarriers
                  ? Section::kValues
                  : static_cast<Section>(static_cast<std::uint8_t>(section) + 1);
  }
};
inline constexpr std::size_t kSnapshotRecordBytes = 1u << 20;

}  // namespace ivy::store
