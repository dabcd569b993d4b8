// A journal that keeps everything in memory, and the contents of an engine as text to compare.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/engine/effect.h"
#include "rendezvous/engine/engine.h"

namespace ivy::test {

struct JournalBook : store::Journal {
  bool has_room(std::size_t bytes, Use use) override {
    return bytes <= (use == Use::kMore ? room : last_room);
  }
  void record(std::string effects) override { records.push_back(std::move(effects)); }

  std::vector<std::string> records;
  std::size_t room = ~std::size_t{0};
  std::size_t last_room = ~std::size_t{0};  // For what takes away.
};

// Everything that an engine keeps but what it has answered (an engine that starts from a journal
// need not remember as much): two with the same contents give the same text.
inline std::string contents_of(const store::Engine& engine) {
  std::string text = std::to_string(engine.bytes()) + " " + std::to_string(engine.key_count());
  store::SnapshotCursor cursor;
  std::vector<std::string> records;
  while (!cursor.done()) engine.write_snapshot(cursor, store::kSnapshotRecordBytes, records);
  for (const std::string& record : records) {
    store::PayloadReader in(record);
    while (!in.done()) {
      const Result<store::Effect> effect = store::read_effect(in);
      if (!effect.ok()) return "damaged: " + effect.error().message;
      if (effect->kind != store::EffectKind::kAnswered) store::append_effect(text, *effect);
    }
  }
  return text;
}

// Of a new engine in which these were done again; or why they could not be.
inline std::string contents_after(const std::vector<std::string>& records) {
  store::Engine engine;
  for (const std::string& record : records) {
    const Result<void> redone = engine.replay(record);
    if (!redone.ok()) return redone.error().message;
  }
  return contents_of(engine);
}

}  // namespace ivy::test
