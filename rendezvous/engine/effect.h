// The changes that a request has made in the store, in a form that can be kept and replayed: the
// contents of the write-ahead log. An effect says the outcome of a request, not the request (an add
// is the put of its sum), so that a replay needs no rules.
//
// clang-format off
//   u8 kind   u8 space   what follows
//   1 put        *       key, value
//   2 append     *       key, value           the key exists
//   3 erase      *       key                  the key exists
//   4 push       *       key, value
//   5 pop        *       key                  of the longest waiting item
//   6 barrier    *       name, u32 size, u64 round, u32 n, n (u32 member, u64 call)
//   7 generation 0       u32 generation       everything before is forgotten
//   8 answered   0       u64 session, u64 number, u64 lowest, u8 1: with a number 1; 0: with done
//                        (answered_requests.h)
// clang-format on
//
// Integers are little endian, a text is u32 length and bytes, as in proto/wire/store_wire.h.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/engine/answered_requests.h"
#include "rendezvous/engine/journal.h"

namespace ivy::store {

enum class EffectKind : std::uint8_t {
  kPut = 1,
  kAppend = 2,
  kErase = 3,
  kPush = 4,
  kPop = 5,
  kBarrier = 6,
  kGeneration = 7,
  kAnswered = 8,
};

// Its views point into the bytes that it was read from, or is written from.
struct Effect {
  EffectKind kind = EffectKind::kPut;
  Space space = Space::kNative;
  std::string_view key = {};
  std::string_view value = {};
  std::uint32_t number = 0;  // A barrier's size; the generation.
  std::uint64_t round = 0;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> calls = {};  // The last round's, by member.
  AnsweredRequests::Kept answered = {};
};
Effect effect_of(const AnsweredRequests::Kept& answered);

void append_effect(std::string& out, const Effect& effect);
// Reads the next effect. DataLoss: these bytes are no effect, or one beyond the store's limits.
Result<Effect> read_effect(PayloadReader& in);

// The effects of the request that is being served, on their way to the journal as one record.
class EffectRecord {
 public:
  // From now on; null: effects are kept nowhere.
  void keep_in(Journal* journal) { journal_ = journal; }
  bool is_kept() const { return journal_ != nullptr; }
  bool empty() const { return effects_.empty(); }
  Result<void> room_for(std::size_t more_bytes, Journal::Use use = Journal::Use::kMore) const;
  void note(const Effect& effect) {
    if (journal_ != nullptr) append_effect(effects_, effect);
  }
  void end();

 private:
  Journal* journal_ = nullptr;
  std::string effects_;
};

// Collects effects into records of about kSnapshotRecordBytes.
class EffectWriter {
 public:
  explicit EffectWriter(std::vector<std::string>& records) : records_(records) {}
  ~EffectWriter() { end_record(); }
  EffectWriter(const EffectWriter&) = delete;
  EffectWriter& operator=(const EffectWriter&) = delete;

  void write(const Effect& effect);
  std::size_t bytes() const { return bytes_ + record_.size(); }

 private:
  void end_record();

  std::vector<std::string>& records_;
  std::string record_;
  std::size_t bytes_ = 0;
};

// Returns those of `effects` that concern parts that a snapshot has passed already; the answers are
// its first part. Returns nothing if a generation begins in them, which makes the snapshot useless.
std::optional<std::string> covered_effects(std::string_view effects, const SnapshotCursor& cursor);

}  // namespace ivy::store
