// What outlives the store's process, and how it leaves the engine: change by change, and all of it
// piece by piece. Pure. Thread: the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ivy::store {

// Who keeps what the engine changes, so that it outlives the process (write_ahead_log.h). The
// engine tells of changes of what it keeps, not of waits, watches and clients: these end with their
// connections.
class Journal {
 public:
  virtual ~Journal() = default;
  // What only takes away (delete, pop) or lets members go on (a barrier) is for kLess: it may have
  // room that is kept back from what writes more.
  enum class Use { kMore, kLess };
  // Whether so many bytes more can be kept; asked before every request that changes something.
  // Only a new generation is recorded unasked.
  virtual bool has_room(std::size_t bytes, Use use) = 0;
  // The effects (effect.h) of one request or of a new generation: all of them or none.
  virtual void record(std::string effects) = 0;
};

// How far a snapshot has come: what is in sections before this one, and keys up to last_key. What
// has no section is in its first piece.
struct SnapshotCursor {
  enum class Section : std::uint8_t { kValues, kQueues, kBarriers };
  bool has_begun = false;
  std::uint32_t space = 0;
  Section section = Section::kValues;
  std::optional<std::string> last_key;
  bool done() const { return space == 3; }
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
