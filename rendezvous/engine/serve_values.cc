// Serves the requests on values.
#include <algorithm>
#include <utility>

#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/explanation.h"

namespace ivy::store {

void EngineState::serve(Set&& request) {
  if (request.once) {
    const auto found = contents().values.find(request.key);
    if (found != contents().values.end()) {
      if (found->second.value == request.value) return answer(Done{});
      return answer(Error{Code::kAlreadyExists,
                          "key '" + shown_key(request.key) + "' was set before, to another value"});
    }
  }
  const Result<void> stored = put(request.key, std::move(request.value), request.once);
  if (!stored.ok()) return answer(stored.error());
  answer(Done{});
  tell_waiters(request.key);
}

void EngineState::serve(Get&& request) {
  const auto found = contents().values.find(request.key);
  if (found != contents().values.end()) return answer(Value{found->second.value});
  if (!request.wait_until_ns)
    return answer(Error{Code::kNotFound, "no key '" + shown_key(request.key) + "'"});
  const Result<void> sane = check_key(request.key);
  if (!sane.ok()) return answer(sane.error());
  begin_wait(waiter_here(WaitKind::kValue, {std::move(request.key)}, *request.wait_until_ns));
}

void EngineState::serve(Wait&& request) {
  const Result<void> sane = check_keys(request.keys);
  if (!sane.ok()) return answer(sane.error());
  if (std::all_of(request.keys.begin(), request.keys.end(), exists_here())) return answer(Done{});
  begin_wait(waiter_here(WaitKind::kKeys, std::move(request.keys), request.deadline_ns));
}

void EngineState::serve(Check&& request) {
  const Result<void> sane = check_keys(request.keys);
  if (!sane.ok()) return answer(sane.error());
  const bool all = std::all_of(request.keys.begin(), request.keys.end(), exists_here());
  answer(Number{all ? 1 : 0});
}

void EngineState::serve(Add&& request) {
  const Result<std::int64_t> sum = add(request.key, request.delta);
  if (!sum.ok()) return answer(sum.error());
  answer(Number{*sum});
  tell_waiters(request.key);
}

void EngineState::serve(CompareSet&& request) {
  const auto found = contents().values.find(request.key);
  const bool present = found != contents().values.end();
  const bool fits_missing = !request.expected || (request.as_torch && request.expected->empty());
  const bool equal =
      present ? request.expected && found->second.value == *request.expected : fits_missing;
  if (!equal) {
    if (request.as_torch && !present) return answer(Compared{false, std::move(request.expected)});
    return answer(Compared{false, present ? std::optional(found->second.value) : std::nullopt});
  }
  const Result<void> stored = put(request.key, request.desired);
  if (!stored.ok()) return answer(stored.error());
  answer(Compared{true, std::move(request.desired)});
  tell_waiters(request.key);
}

void EngineState::serve(Append&& request) {
  auto& values = contents().values;
  const auto found = values.find(request.key);
  std::size_t length = request.value.size();
  if (found == values.end()) {
    const Result<void> stored = put(request.key, std::move(request.value));
    if (!stored.ok()) return answer(stored.error());
  } else {
    length += found->second.value.size();
    if (length > kMaxValueBytes) return answer(too_long("a value", length, kMaxValueBytes));
    Result<void> room = room_for(0, request.value.size());
    if (room.ok()) room = room_in_log(request.key.size() + request.value.size());
    if (!room.ok()) return answer(room.error());
    bytes += request.value.size();
    changes += 1;
    note({EffectKind::kAppend, space, request.key, request.value, 0, 0, {}});
    found->second.is_set_once = false;
    found->second.value += request.value;
  }
  answer(Number{static_cast<std::int64_t>(length)});
  tell_waiters(request.key);
}

void EngineState::serve(Delete&& request) {
  auto& values = contents().values;
  const auto found = values.find(request.key);
  if (found == values.end()) return answer(Number{0});
  const Result<void> room = room_in_log(request.key.size(), Journal::Use::kLess);
  if (!room.ok()) return answer(room.error());
  bytes -= found->first.size() + found->second.value.size() + kKeyOverheadBytes;
  keys -= 1;
  changes += 1;
  note({EffectKind::kErase, space, request.key, {}, 0, 0, {}});
  values.erase(found);
  answer(Number{1});
  tell_watches(request.key, Changed::What::kDeleted, {});
}

void EngineState::serve(MultiGet&& request) {
  const Result<void> sane = check_keys(request.keys);
  if (!sane.ok()) return answer(sane.error());
  Values values;
  std::size_t reply_bytes = 0;
  for (const std::string& key : request.keys) {
    const auto found = contents().values.find(key);
    if (found == contents().values.end())
      return answer(Error{Code::kNotFound, "no key '" + shown_key(key) + "'"});
    reply_bytes += found->second.value.size() + kReplyTextBytes;
    if (reply_bytes > kMaxReplyBytes) {
      return answer(Error{Code::kResourceExhausted, "these values are together longer than " +
                                                        std::to_string(kMaxReplyBytes) +
                                                        " bytes: ask for fewer at once"});
    }
    values.bytes.push_back(found->second.value);
  }
  answer(std::move(values));
}

void EngineState::serve(MultiSet&& request) {
  // Everything is checked before anything is stored. A key may be named twice: the last one stays,
  // and the room is computed as if all were new, which can only refuse too early.
  std::size_t more_bytes = 0;
  std::size_t more_keys = 0;
  std::size_t log_bytes = 0;
  const Result<void> few = check_key_count(request.entries.size());
  if (!few.ok()) return answer(few.error());
  for (const auto& [key, value] : request.entries) {
    const Result<void> sane = check_entry(key, value);
    if (!sane.ok()) return answer(sane.error());
    log_bytes += key.size() + value.size() + kKeyOverheadBytes;
    const auto found = contents().values.find(key);
    if (found == contents().values.end()) {
      more_keys += 1;
      more_bytes += key.size() + kKeyOverheadBytes + value.size();
    } else if (value.size() > found->second.value.size()) {
      more_bytes += value.size() - found->second.value.size();
    }
  }
  Result<void> room = room_for(more_keys, more_bytes);
  if (room.ok()) room = room_in_log(log_bytes);
  if (!room.ok()) return answer(room.error());
  for (auto& [key, value] : request.entries) IVY_ASSERT(put(key, std::move(value)).ok());
  answer(Done{});
  for (const auto& [key, value] : request.entries) tell_waiters(key);
}

void EngineState::serve(List&& request) {
  Keys list;
  std::size_t reply_bytes = 0;
  const auto& values = contents().values;
  const std::string& from = std::max(request.prefix, request.after);
  for (auto at = values.lower_bound(from); at != values.end(); ++at) {
    if (!std::string_view(at->first).starts_with(request.prefix)) break;
    if (!request.after.empty() && at->first <= request.after) continue;
    reply_bytes += at->first.size() + kReplyTextBytes;
    if ((request.limit != 0 && list.keys.size() == request.limit) || reply_bytes > kMaxReplyBytes) {
      list.more = true;
      break;
    }
    list.keys.push_back(at->first);
  }
  answer(std::move(list));
}

void EngineState::serve(Count&& request) {
  const auto& values = contents().values;
  if (request.prefix.empty()) return answer(Number{static_cast<std::int64_t>(values.size())});
  std::int64_t count = 0;
  for (auto at = values.lower_bound(request.prefix);
       at != values.end() && std::string_view(at->first).starts_with(request.prefix); ++at) {
    ++count;
  }
  answer(Number{count});
}

}  // namespace ivy::store
