// Serves the requests by which clients synchronize: queues, barriers, counters, watches.
#include <algorithm>
#include <utility>

#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/explanation.h"

namespace ivy::store {

void EngineState::serve(QueuePush&& request) {
  const Result<void> sane = check_entry(request.key, request.value);
  if (!sane.ok()) return answer(sane.error());
  const std::size_t cost = request.key.size() + request.value.size() + kKeyOverheadBytes;
  Result<void> room = room_for(1, cost);
  // A client may wait for the item: then the same record also holds the pop.
  if (room.ok()) room = room_in_log(cost + request.key.size() + kKeyOverheadBytes);
  if (!room.ok()) return answer(room.error());
  note({EffectKind::kPush, space, request.key, request.value, 0, 0, {}});
  bytes += cost;
  keys += 1;
  changes += 1;
  std::deque<std::string>& queue = contents().queues[request.key];
  queue.push_back(std::move(request.value));
  answer(Number{static_cast<std::int64_t>(queue.size())});
  if (queue.size() == 1) tell_exact_watches(request.key, Changed::What::kSet, {}, true);
  tell_queue(request.key);
}

Result<void> EngineState::room_to_take(Queues::iterator queue) const {
  return room_in_log(queue->first.size(), Journal::Use::kLess);
}

// Takes the oldest item; the queue is removed with its last one.
std::string EngineState::take_front(Queues::iterator queue) {
  std::string item = std::move(queue->second.front());
  queue->second.pop_front();
  bytes -= queue->first.size() + item.size() + kKeyOverheadBytes;
  keys -= 1;
  changes += 1;
  note({EffectKind::kPop, space, queue->first, {}, 0, 0, {}});
  if (queue->second.empty()) contents().queues.erase(queue);
  return item;
}

// Answers first the clients that pop, the longest wait first; if items are left then, the clients
// that wait for the queue to exist.
void EngineState::tell_queue(const std::string& key) {
  auto& queues = contents().queues;
  const std::vector<WaiterId> interested = waiters.missing(space, key);
  for (const WaiterId waiter : interested) {
    if (waiters.find(waiter)->kind != WaitKind::kItem) continue;
    const auto queue = queues.find(key);
    if (queue == queues.end()) break;
    answer(*waiters.find(waiter), Value{take_front(queue)});
    waiters.remove(waiter);
  }
  if (!queues.contains(key)) return;
  for (const WaiterId waiter : waiters.missing(space, key)) settle(waiter, key);
}

void EngineState::serve(QueuePop&& request) {
  auto& queues = contents().queues;
  const auto queue = queues.find(request.key);
  if (request.counted) {
    if (queue == queues.end()) return answer(Popped{});
    const Result<void> room = room_to_take(queue);
    if (!room.ok()) return answer(room.error());
    const auto length = static_cast<std::int64_t>(queue->second.size());
    return answer(Popped{length, take_front(queue)});
  }
  if (queue == queues.end()) {
    if (!request.wait_until_ns) {
      return answer(Error{Code::kNotFound, "queue '" + shown_key(request.key) + "' is empty"});
    }
    const Result<void> sane = check_key(request.key);
    if (!sane.ok()) return answer(sane.error());
    return begin_wait(
        waiter_here(WaitKind::kItem, {std::move(request.key)}, *request.wait_until_ns));
  }
  const Result<void> room = room_to_take(queue);
  if (!room.ok()) return answer(room.error());
  answer(Value{take_front(queue)});
}

void EngineState::serve(QueueLength&& request) {
  const auto queue = contents().queues.find(request.key);
  const std::size_t length = queue == contents().queues.end() ? 0 : queue->second.size();
  answer(Number{static_cast<std::int64_t>(length)});
}

std::size_t barrier_cost(std::string_view name, std::uint32_t size) {
  return name.size() + kKeyOverheadBytes + kMemberBytes * size;
}

// Returns the barrier of that name; creates it if needed. Its size may change between rounds only.
Result<EngineState::BarrierRound*> EngineState::barrier_for(const Barrier& request) {
  auto& barriers = contents().barriers;
  const auto found = barriers.find(request.name);
  const bool is_new = found == barriers.end();
  if (!is_new && found->second.size == request.size) return &found->second;
  if (!is_new && !found->second.arrived.empty()) {
    return Error{Code::kInvalidArgument, "barrier '" + shown_key(request.name) +
                                             "': this member says that it is for " +
                                             std::to_string(request.size) + ", others said " +
                                             std::to_string(found->second.size)};
  }
  const std::size_t cost = barrier_cost(request.name, request.size);
  const std::size_t before = is_new ? 0 : found->second.cost_bytes;
  IVY_CHECK(room_for(is_new ? 1 : 0, cost > before ? cost - before : 0));
  // The record of the round holds the calls of the round before.
  IVY_CHECK(room_in_log(std::max(cost, before)));
  bytes = bytes - before + cost;
  keys += is_new ? 1 : 0;
  BarrierRound& barrier = is_new ? barriers[request.name] : found->second;
  barrier.size = request.size;
  barrier.cost_bytes = cost;
  note_barrier(request.name, barrier);
  return &barrier;
}

Number loss_of(std::uint32_t member) { return Number{-1 - static_cast<std::int64_t>(member)}; }

// Marks the barrier of this wait as lost with its client. advance() tells the others.
void EngineState::note_loss(const Waiter& waiter) {
  if (waiter.kind != WaitKind::kBarrier) return;
  auto& barriers = spaces[static_cast<std::size_t>(waiter.space)].barriers;
  const auto found = barriers.find(waiter.keys.front());
  if (found == barriers.end() || !found->second.ends_with_a_loss || found->second.lost_member)
    return;
  found->second.lost_member = waiter.member;
  ended_barriers.emplace_back(waiter.space, found->first);
}

void EngineState::answer_ended_barriers() {
  for (const auto& [where, name] : std::exchange(ended_barriers, {})) {
    auto& barriers = spaces[static_cast<std::size_t>(where)].barriers;
    const auto found = barriers.find(name);
    if (found == barriers.end() || !found->second.lost_member) continue;
    for (const auto& [member, ids] : std::exchange(found->second.arrived, {})) {
      for (const WaiterId waiting : ids) {
        answer(*waiters.find(waiting), loss_of(*found->second.lost_member));
        waiters.remove(waiting);
      }
    }
  }
}

void EngineState::serve(Barrier&& request) {
  if (request.size == 0 || request.member >= request.size) {
    return answer(Error{Code::kInvalidArgument, "barrier '" + shown_key(request.name) +
                                                    "': member " + std::to_string(request.member) +
                                                    " of " + std::to_string(request.size) +
                                                    "; members are 0 to size - 1"});
  }
  Result<void> sane = check_key(request.name);
  if (sane.ok()) sane = room_to_wait({request.name});
  if (!sane.ok()) return answer(sane.error());
  // A member whose answer was lost asks again: it must not count for the next round.
  if (const auto known = contents().barriers.find(request.name);
      request.call != 0 && known != contents().barriers.end()) {
    const auto last = known->second.last_calls.find(request.member);
    if (last != known->second.last_calls.end() && last->second == request.call)
      return answer(Number{static_cast<std::int64_t>(known->second.round - 1)});
  }
  const Result<BarrierRound*> found = barrier_for(request);
  if (!found.ok()) return answer(found.error());
  BarrierRound& barrier = **found;
  barrier.ends_with_a_loss |= request.ends_with_a_loss;
  if (barrier.lost_member) return answer(loss_of(*barrier.lost_member));
  // If the log has no room, only the last member is refused and may retry: the others keep waiting.
  const bool is_last =
      barrier.arrived.size() + (barrier.arrived.contains(request.member) ? 0 : 1) == barrier.size;
  if (is_last) {
    const Result<void> room = room_in_log(barrier.cost_bytes, Journal::Use::kLess);
    if (!room.ok()) return answer(room.error());
  }
  Waiter waiter = waiter_here(WaitKind::kBarrier, {request.name}, request.deadline_ns);
  waiter.member = request.member;
  waiter.at_least = static_cast<std::int64_t>(request.call);
  const WaiterId here = waiters.add(std::move(waiter), [](const std::string&) { return false; });
  barrier.arrived[request.member].insert(here);
  changes += 1;
  if (barrier.arrived.size() == barrier.size) complete(request.name, barrier);
}

void EngineState::complete(const std::string& name, BarrierRound& barrier) {
  barrier.last_calls.clear();
  for (const auto& [member, ids] : barrier.arrived) {
    for (const WaiterId waiting : ids) {
      const Waiter& waiter = *waiters.find(waiting);
      barrier.last_calls[member] = static_cast<std::uint64_t>(waiter.at_least);
      answer(waiter, Number{static_cast<std::int64_t>(barrier.round)});
      waiters.remove(waiting);
    }
  }
  barrier.arrived.clear();
  barrier.round += 1;
  note_barrier(name, barrier);
}

void EngineState::serve(AddAndWait&& request) {
  const Result<std::int64_t> sum = add(request.key, 1);
  if (!sum.ok()) return answer(sum.error());
  if (*sum >= request.at_least) {
    answer(Done{});
  } else {
    Waiter waiter = waiter_here(WaitKind::kNumber, {request.key}, kNever);
    waiter.at_least = request.at_least;
    begin_wait(std::move(waiter));
  }
  tell_waiters(request.key);
}

void EngineState::serve(Watch&& request) {
  const Result<void> sane = check_key(request.prefix);
  if (!sane.ok()) return answer(sane.error());
  Client& here = clients.find(client)->second;
  const std::size_t limit = here.info.is_leaf ? limits.watches_per_leaf : limits.watches_per_client;
  if (here.watches >= limit) {
    return answer(Error{Code::kResourceExhausted,
                        "this client has " + std::to_string(limit) + " watches, its limit"});
  }
  here.watches += 1;
  if (request.exact) {
    const auto found = contents().values.find(request.prefix);
    const bool present = found != contents().values.end();
    answer(Compared{false, present ? std::optional(found->second.value) : std::nullopt});
    contents().exact_watches.emplace(request.prefix,
                                     WatchEntry{client, id, request.prefix, request.one_shot});
    return;
  }
  contents().watches.push_back({client, id, std::move(request.prefix), false});
  answer(Done{});
}

void EngineState::cancel(RequestId request) {
  if (const WaiterId waiting = waiters.find(client, request); waiting != 0) {
    answer(*waiters.find(waiting), Error{Code::kCancelled, "cancelled by its client"});
    forget_wait(waiting);
  }
  end_watches(client, request);
}

void EngineState::serve(Cancel&& request) {
  cancel(request.request);
  for (const RequestId other : request.or_these) cancel(other);
  answer(Done{});
}

}  // namespace ivy::store
