#include "rendezvous/engine/effect.h"

#include <tuple>

namespace ivy::store {
namespace {

bool has_value(EffectKind kind) {
  return kind == EffectKind::kPut || kind == EffectKind::kAppend || kind == EffectKind::kPush;
}

Error damaged(const char* what) {
  return Error{Code::kDataLoss, std::string("a damaged effect: ") + what};
}

SnapshotCursor::Section section_of(EffectKind kind) {
  switch (kind) {
    case EffectKind::kPush:
    case EffectKind::kPop:
      return SnapshotCursor::Section::kQueues;
    case EffectKind::kBarrier:
      return SnapshotCursor::Section::kBarriers;
    default:
      return SnapshotCursor::Section::kValues;
  }
}

bool is_covered(const Effect& effect, const SnapshotCursor& cursor) {
  if (effect.kind == EffectKind::kAnswered) return true;
  const auto place =
      std::make_tuple(static_cast<std::uint32_t>(effect.space), section_of(effect.kind));
  const auto passed = std::make_tuple(cursor.space, cursor.section);
  if (place != passed) return place < passed;
  return cursor.last_key && effect.key <= *cursor.last_key;
}

}  // namespace

Effect effect_of(const AnsweredRequests::Kept& answered) {
  Effect effect;
  effect.kind = EffectKind::kAnswered;
  effect.answered = answered;
  return effect;
}

void append_effect(std::string& out, const Effect& effect) {
  put_u8(out, static_cast<std::uint8_t>(effect.kind));
  put_u8(out, static_cast<std::uint8_t>(effect.space));
  if (effect.kind == EffectKind::kGeneration) return put_u32(out, effect.number);
  if (effect.kind == EffectKind::kAnswered) {
    put_u64(out, effect.answered.session);
    put_u64(out, effect.answered.number);
    put_u64(out, effect.answered.lowest);
    return put_u8(out, effect.answered.is_number ? 1 : 0);
  }
  put_text(out, effect.key);
  if (has_value(effect.kind)) put_text(out, effect.value);
  if (effect.kind != EffectKind::kBarrier) return;
  put_u32(out, effect.number);
  put_u64(out, effect.round);
  put_u32(out, static_cast<std::uint32_t>(effect.calls.size()));
  for (const auto& [member, call] : effect.calls) {
    put_u32(out, member);
    put_u64(out, call);
  }
}

Result<Effect> read_effect(PayloadReader& in) {
  Effect effect;
  const std::uint8_t kind = in.u8();
  const std::uint8_t space = in.u8();
  if (kind < static_cast<std::uint8_t>(EffectKind::kPut) ||
      kind > static_cast<std::uint8_t>(EffectKind::kAnswered) || space >= kSpaces) {
    return damaged("an unknown kind");
  }
  effect.kind = static_cast<EffectKind>(kind);
  effect.space = static_cast<Space>(space);
  if (effect.kind == EffectKind::kGeneration) {
    effect.number = in.u32();
  } else if (effect.kind == EffectKind::kAnswered) {
    effect.answered.session = in.u64();
    effect.answered.number = in.u64();
    effect.answered.lowest = in.u64();
    effect.answered.is_number = in.u8() != 0;
  } else {
    effect.key = in.text();
    if (has_value(effect.kind)) effect.value = in.text();
  }
  if (effect.kind == EffectKind::kBarrier) {
    effect.number = in.u32();
    effect.round = in.u64();
    const std::uint32_t count = in.u32();
    if (count > effect.number) return damaged("more members than the barrier has");
    // A call takes twelve bytes, so a count that is too large ends the loop early.
    for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
      const std::uint32_t member = in.u32();
      effect.calls.emplace_back(member, in.u64());
    }
  }
  if (!in.ok()) return damaged("it ends early");
  if (effect.key.size() > kMaxKeyBytes || effect.value.size() > kMaxValueBytes)
    return damaged("beyond the store's limits");
  return effect;
}

Result<void> EffectRecord::room_for(std::size_t more_bytes, Journal::Use use) const {
  // Room for an effect's kind, space and two lengths, and for the effect "answered".
  constexpr std::size_t kHeadBytes = 16 + 32;
  if (journal_ == nullptr || journal_->has_room(more_bytes + kHeadBytes, use)) return {};
  return Error{Code::kResourceExhausted,
               "the disk of the store's log is full: nothing can be written until there is room"};
}

void EffectRecord::end() {
  if (!effects_.empty()) journal_->record(std::exchange(effects_, {}));
}

void EffectWriter::write(const Effect& effect) {
  append_effect(record_, effect);
  if (record_.size() >= kSnapshotRecordBytes) end_record();
}

void EffectWriter::end_record() {
  bytes_ += record_.size();
  if (!record_.empty()) records_.push_back(std::exchange(record_, {}));
}

std::optional<std::string> covered_effects(std::string_view effects, const SnapshotCursor& cursor) {
  std::string covered;
  PayloadReader in(effects);
  while (!in.done()) {
    const Result<Effect> effect = read_effect(in);
    IVY_ASSERT(effect.ok());
    if (effect->kind == EffectKind::kGeneration) return std::nullopt;
    if (is_covered(*effect, cursor)) append_effect(covered, *effect);
  }
  return covered;
}

}  // namespace ivy::store
