// The engine's persistence: tells its journal of every change, replays such changes, and writes
// snapshots of its contents.
#include <algorithm>
#include <utility>

#include "rendezvous/engine/effect.h"
#include "rendezvous/engine/engine.h"
#include "rendezvous/engine/serving.h"

namespace ivy::store {
namespace {

Error unlike(const char* what) {
  return Error{Code::kDataLoss, std::string("these effects belong to other contents: ") + what};
}

}  // namespace

void EngineState::note(const Effect& effect) {
  if (journal != nullptr) append_effect(effects, effect);
}

void EngineState::note_barrier(const std::string& name, const BarrierRound& barrier) {
  if (journal == nullptr) return;
  Effect effect{EffectKind::kBarrier, space, name, {}, barrier.size, barrier.round, {}};
  effect.calls.assign(barrier.last_calls.begin(), barrier.last_calls.end());
  append_effect(effects, effect);
}

void EngineState::end_record() {
  if (!effects.empty()) journal->record(std::exchange(effects, {}));
}

Result<void> EngineState::room_in_log(std::size_t more_bytes, Journal::Use use) const {
  // Room for an effect's kind, space and two lengths, and for the effect "answered".
  constexpr std::size_t kHeadBytes = 16 + 32;
  if (journal == nullptr || journal->has_room(more_bytes + kHeadBytes, use)) return {};
  return Error{Code::kResourceExhausted,
               "the disk of the store's log is full: nothing can be written until there is room"};
}

Result<void> EngineState::redo_value(const Effect& effect, Contents& there) {
  const auto found = there.values.find(effect.key);
  if (effect.kind == EffectKind::kPut && found == there.values.end()) {
    there.values.emplace(effect.key, Entry{std::string(effect.value)});
    bytes += effect.key.size() + effect.value.size() + kKeyOverheadBytes;
    keys += 1;
    return {};
  }
  if (found == there.values.end()) return unlike("a key that is missing");
  if (effect.kind == EffectKind::kPut) {
    bytes = bytes - found->second.value.size() + effect.value.size();
    found->second.value = effect.value;
  } else if (effect.kind == EffectKind::kAppend) {
    if (found->second.value.size() + effect.value.size() > kMaxValueBytes)
      return unlike("a value that is too long");
    bytes += effect.value.size();
    found->second.value += effect.value;
  } else {
    bytes -= found->first.size() + found->second.value.size() + kKeyOverheadBytes;
    keys -= 1;
    there.values.erase(found);
  }
  return {};
}

Result<void> EngineState::redo_queue(const Effect& effect, Contents& there) {
  auto found = there.queues.find(effect.key);
  if (effect.kind == EffectKind::kPush) {
    if (found == there.queues.end())
      found = there.queues.emplace(effect.key, std::deque<std::string>()).first;
    found->second.emplace_back(effect.value);
    bytes += effect.key.size() + effect.value.size() + kKeyOverheadBytes;
    keys += 1;
    return {};
  }
  if (found == there.queues.end()) return unlike("a queue that is missing");
  space = effect.space;
  take_front(found);
  return {};
}

void EngineState::redo_barrier(const Effect& effect, Contents& there) {
  const auto [found, is_new] = there.barriers.try_emplace(std::string(effect.key));
  BarrierRound& barrier = found->second;
  bytes -= barrier.cost_bytes;
  keys += is_new ? 1 : 0;
  barrier.size = effect.number;
  barrier.round = effect.round;
  barrier.last_calls.clear();
  barrier.last_calls.insert(effect.calls.begin(), effect.calls.end());
  barrier.cost_bytes = barrier_cost(effect.key, effect.number);
  bytes += barrier.cost_bytes;
}

Result<void> EngineState::redo(const Effect& effect) {
  Contents& there = spaces[static_cast<std::size_t>(effect.space)];
  switch (effect.kind) {
    case EffectKind::kPut:
    case EffectKind::kAppend:
    case EffectKind::kErase:
      return redo_value(effect, there);
    case EffectKind::kPush:
    case EffectKind::kPop:
      return redo_queue(effect, there);
    case EffectKind::kBarrier:
      redo_barrier(effect, there);
      return {};
    case EffectKind::kGeneration:
      for (Contents& contents : spaces) contents = {};
      answered.clear();
      bytes = 0;
      keys = 0;
      generation = effect.number;
      return {};
    case EffectKind::kAnswered:
      answered.restore(effect.answered);
      return {};
  }
  return {};
}

namespace {

// Collects effects into records of about kSnapshotRecordBytes.
class SnapshotWriter {
 public:
  explicit SnapshotWriter(std::vector<std::string>& records) : records_(records) {}
  ~SnapshotWriter() { end_record(); }
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  void write(const Effect& effect) {
    append_effect(record_, effect);
    if (record_.size() >= kSnapshotRecordBytes) end_record();
  }
  std::size_t bytes() const { return bytes_ + record_.size(); }

 private:
  void end_record() {
    bytes_ += record_.size();
    if (!record_.empty()) records_.push_back(std::exchange(record_, {}));
  }

  std::vector<std::string>& records_;
  std::string record_;
  std::size_t bytes_ = 0;
};

// Writes the entries after the cursor's key. Returns true at the end of the section.
template <class Map, class Write>
bool pass(const Map& map, SnapshotCursor& cursor, const SnapshotWriter& writer,
          std::size_t most_bytes, const Write& write) {
  auto at = cursor.last_key ? map.upper_bound(*cursor.last_key) : map.begin();
  for (; at != map.end() && writer.bytes() < most_bytes; ++at) {
    write(at->first, at->second);
    cursor.last_key = at->first;
  }
  return at == map.end();
}

}  // namespace

void Engine::snapshot(SnapshotCursor& cursor, std::size_t most_bytes,
                      std::vector<std::string>& records) const {
  using Section = SnapshotCursor::Section;
  SnapshotWriter writer(records);
  if (!std::exchange(cursor.has_begun, true)) {
    writer.write({EffectKind::kGeneration, Space::kNative, {}, {}, state_->generation, 0, {}});
    state_->answered.each(
        [&](const AnsweredRequests::Kept& kept) { writer.write(effect_of(kept)); });
  }
  while (!cursor.done() && writer.bytes() < most_bytes) {
    const auto space = static_cast<Space>(cursor.space);
    const EngineState::Contents& contents = state_->spaces[cursor.space];
    bool is_over = false;
    if (cursor.section == Section::kValues) {
      is_over = pass(contents.values, cursor, writer, most_bytes,
                     [&](const std::string& key, const EngineState::Entry& entry) {
                       writer.write({EffectKind::kPut, space, key, entry.value, 0, 0, {}});
                     });
    } else if (cursor.section == Section::kQueues) {
      is_over = pass(contents.queues, cursor, writer, most_bytes,
                     [&](const std::string& key, const std::deque<std::string>& items) {
                       for (const std::string& item : items)
                         writer.write({EffectKind::kPush, space, key, item, 0, 0, {}});
                     });
    } else {
      is_over = pass(contents.barriers, cursor, writer, most_bytes,
                     [&](const std::string& name, const EngineState::BarrierRound& barrier) {
                       Effect effect{EffectKind::kBarrier, space,         name, {},
                                     barrier.size,         barrier.round, {}};
                       effect.calls.assign(barrier.last_calls.begin(), barrier.last_calls.end());
                       writer.write(effect);
                     });
    }
    if (is_over) cursor.next_section();
  }
}

void Engine::journal_to(Journal* journal) { state_->journal = journal; }

Result<void> Engine::replay(std::string_view effects) {
  PayloadReader in(effects);
  while (!in.done()) {
    const Effect effect = IVY_TRY(read_effect(in));
    IVY_CHECK(state_->redo(effect));
  }
  return {};
}

}  // namespace ivy::store
