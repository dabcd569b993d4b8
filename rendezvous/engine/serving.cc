// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/serving.h"

#include "proto/contract/text.h"

namespace ivy::store {

void forget_wait(WaiterId id, Waiters& waiters, Contents& contents) {
  const Waiter& waiter = *waiters.find(id);
  Contents::Barrier* barrier = waiter.kind == WaitKind::kBarrier
                                   ? contents.find_barrier(waiter.space, waiter.keys.front())
                                   : nullptr;
  if (barrier != nullptr) {
    const auto member = barrier->arrived.find(waiter.member);
    if (member != barrier->arrived.end() && member->second.erase(id) > 0 && member->second.empty())
      barrier->arrived.erase(member);
  }
  waiters.remove(id);
}

Waiter Serving::waiter(WaitKind kind, std::vector<std::string> keys,
                       std::uint64_t deadline_ns) const {
  Waiter made;
  made.client = client;
  made.request = id;
  made.space = space;
  made.kind = kind;
  made.keys = std::move(keys);
  made.deadline_ns = deadline_ns;
  made.since_ns = now_ns;
  return made;
}

Result<void> Serving::check_wait(const std::vector<std::string>& keys) const {
  if (waiters.find(client, id) != 0)
    return Error{Code::kInvalidArgument, "a request with this number is already waiting"};
  if (waiters.count(client) >= limits.waits_per_client) {
    return Error{Code::kResourceExhausted, "this client has " +
                                               std::to_string(limits.waits_per_client) +
                                               " waiting requests, its limit"};
  }
  const std::size_t more = Waiters::bytes_of(keys);
  if (space == Space::kTorch && waiters.bytes(Space::kTorch) + more > limits.torch_waiting_bytes) {
    return Error{Code::kResourceExhausted, "waiting requests of torch's clients hold " +
                                               std::to_string(waiters.bytes(Space::kTorch)) +
                                               " bytes; at most " +
                                               std::to_string(limits.torch_waiting_bytes)};
  }
  if (waiters.bytes(client) + more > limits.waiting_bytes_per_client ||
      waiters.bytes() + more > limits.waiting_bytes) {
    return Error{Code::kResourceExhausted,
                 "waiting requests hold " + std::to_string(waiters.bytes(client)) +
                     " bytes of this client and " + std::to_string(waiters.bytes()) +
                     " in all; at most " + std::to_string(limits.waiting_bytes_per_client) +
                     " and " + std::to_string(limits.waiting_bytes)};
  }
  return {};
}

void Serving::begin_wait(Waiter waiter) {
  const Result<void> allowed = check_wait(waiter.keys);
  if (!allowed.ok()) return answer(allowed.error());
  const bool by_existence = waiter.kind == WaitKind::kKeys;
  waiters.add(std::move(waiter),
              [&](const std::string& key) { return by_existence && contents.exists(space, key); });
}

void Serving::notify_written(const std::string& key) {
  for (const WaiterId id_of_waiter : waiters.missing(space, key)) settle(id_of_waiter, key);
  if (const Contents::Entry* entry = find(key))
    notify_watches(key, Changed::Kind::kSet, entry->value);
}

void Serving::settle(WaiterId id_of_waiter, const std::string& key) {
  Waiter& waiter = *waiters.find(id_of_waiter);
  const Contents::Entry* entry = find(key);
  switch (waiter.kind) {
    case WaitKind::kItem:
    case WaitKind::kBarrier:
      return;
    case WaitKind::kValue:
      if (entry == nullptr) return;
      answer(waiter, Value{entry->value});
      break;
    case WaitKind::kNumber:
      if (entry == nullptr || to_number<std::int64_t>(entry->value).value_or(0) < waiter.at_least)
        return;
      answer(waiter, Done{});
      break;
    case WaitKind::kKeys:
      if (!waiters.found(id_of_waiter, key)) return;
      // Keys that existed before may have been deleted since.
      if (!waiters.recheck(id_of_waiter, exists())) return;
      answer(waiter, Done{});
      break;
  }
  waiters.remove(id_of_waiter);
  contents.count_change();
}

}  // namespace ivy::store
