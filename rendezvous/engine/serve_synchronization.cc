// SPDX-License-Identifier: Apache-2.0
// Serves the requests by which clients synchronize: queues, barriers, counters, watches.
#include <utility>

#include "rendezvous/engine/explanation.h"
#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

// Answers first the clients that pop, the longest wait first; if items are left then, the clients
// that wait for the queue to exist.
void notify_pushed(Serving& here, const std::string& key) {
  const auto& queues = here.contents.of(here.space).queues;
  for (const WaiterId id : here.waiters.missing(here.space, key)) {
    const Waiter& waiter = *here.waiters.find(id);
    if (waiter.kind != WaitKind::kItem) continue;
    if (!queues.contains(key)) return;
    here.answer(waiter, Value{here.contents.pop(here.space, key)});
    here.waiters.remove(id);
  }
  if (!queues.contains(key)) return;
  for (const WaiterId id : here.waiters.missing(here.space, key)) here.settle(id, key);
}

void complete(Serving& here, Contents::Barrier& barrier) {
  barrier.last_calls.clear();
  for (const auto& [member, ids] : barrier.arrived) {
    for (const WaiterId id : ids) {
      const Waiter& waiter = *here.waiters.find(id);
      barrier.last_calls[member] = static_cast<std::uint64_t>(waiter.at_least);
      here.answer(waiter, Number{static_cast<std::int64_t>(barrier.round)});
      here.waiters.remove(id);
    }
  }
  barrier.arrived.clear();
  barrier.round += 1;
}

void cancel(Serving& here, RequestId request) {
  if (const WaiterId id = here.waiters.find(here.client, request); id != 0) {
    here.answer(*here.waiters.find(id), Error{Code::kCancelled, "cancelled by its client"});
    forget_wait(id, here.waiters, here.contents);
  }
  here.watches.end(here.client, request);
}

}  // namespace

void QueuePush::serve(Serving& here) && {
  const Result<std::size_t> length = here.contents.push(here.space, key, std::move(value));
  if (!length.ok()) return here.answer(length.error());
  here.answer(Number{static_cast<std::int64_t>(*length)});
  notify_pushed(here, key);
}

void QueuePop::serve(Serving& here) && {
  const auto& queues = here.contents.of(here.space).queues;
  const auto queue = queues.find(key);
  if (queue == queues.end() && counted) return here.answer(Popped{});
  if (queue == queues.end() && !wait_until_ns)
    return here.answer(Error{Code::kNotFound, "queue '" + shown_key(key) + "' is empty"});
  if (queue == queues.end()) {
    const Result<void> valid = check_key(key);
    if (!valid.ok()) return here.answer(valid.error());
    return here.begin_wait(here.waiter(WaitKind::kItem, {std::move(key)}, *wait_until_ns));
  }
  const auto length = static_cast<std::int64_t>(queue->second.size());
  std::string item = here.contents.pop(here.space, key);
  if (counted) return here.answer(Popped{length, std::move(item)});
  here.answer(Value{std::move(item)});
}

void QueueLength::serve(Serving& here) && {
  const auto& queues = here.contents.of(here.space).queues;
  const auto queue = queues.find(key);
  const std::size_t length = queue == queues.end() ? 0 : queue->second.size();
  here.answer(Number{static_cast<std::int64_t>(length)});
}

void Barrier::serve(Serving& here) && {
  if (size == 0 || member >= size) {
    return here.answer(Error{Code::kInvalidArgument,
                             "barrier '" + shown_key(name) + "': member " + std::to_string(member) +
                                 " of " + std::to_string(size) + "; members are 0 to size - 1"});
  }
  Result<void> valid = check_key(name);
  if (valid.ok()) valid = here.check_wait({name});
  if (!valid.ok()) return here.answer(valid.error());
  // A member whose answer was lost asks again: it must not count for the next round.
  if (const auto* known = here.contents.find_barrier(here.space, name);
      call != 0 && known != nullptr) {
    const auto last = known->last_calls.find(member);
    if (last != known->last_calls.end() && last->second == call)
      return here.answer(Number{static_cast<std::int64_t>(known->round - 1)});
  }
  const Result<Contents::Barrier*> found = here.contents.barrier_for(here.space, *this);
  if (!found.ok()) return here.answer(found.error());
  Contents::Barrier& barrier = **found;
  barrier.ends_with_a_loss |= ends_with_a_loss;
  if (barrier.lost_member) return here.answer(barrier.loss());
  Waiter waiter = here.waiter(WaitKind::kBarrier, {name}, deadline_ns);
  waiter.member = member;
  waiter.at_least = static_cast<std::int64_t>(call);
  barrier.arrived[member].insert(
      here.waiters.add(std::move(waiter), [](const std::string&) { return false; }));
  here.contents.count_change();
  if (barrier.arrived.size() == barrier.size) complete(here, barrier);
}

void AddAndWait::serve(Serving& here) && {
  const Result<std::int64_t> sum = here.contents.add(here.space, key, 1);
  if (!sum.ok()) return here.answer(sum.error());
  if (*sum >= at_least) {
    here.answer(Done{});
  } else {
    Waiter waiter = here.waiter(WaitKind::kNumber, {key}, kNever);
    waiter.at_least = at_least;
    here.begin_wait(std::move(waiter));
  }
  here.notify_written(key);
}

void Watch::serve(Serving& here) && {
  const Result<void> valid = check_key(prefix);
  if (!valid.ok()) return here.answer(valid.error());
  const std::size_t limit = here.limits.watches_per_client;
  if (here.watches.count(here.client) >= limit) {
    return here.answer(Error{Code::kResourceExhausted,
                             "this client has " + std::to_string(limit) + " watches, its limit"});
  }
  const Contents::Entry* present = exact ? here.find(prefix) : nullptr;
  if (exact) {
    here.answer(Compared{false, present ? std::optional(present->value) : std::nullopt});
  } else {
    here.answer(Done{});
  }
  here.watches.add(here.space, {here.client, here.id, std::move(prefix)}, exact);
}

void Cancel::serve(Serving& here) && {
  cancel(here, request);
  for (const RequestId other : or_these) cancel(here, other);
  here.answer(Done{});
}

void Why::serve(Serving& here) && {
  const WaitGraph graph = wait_graph_of(here.waiters, here.contents, here.clients, here.client);
  here.answer(Value{explain(graph, here.now_ns)});
}

}  // namespace ivy::store
