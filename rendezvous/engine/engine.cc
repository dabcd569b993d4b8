// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/engine.h"

#include <utility>

#include "proto/contract/text.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

// At most kExplainAtOnce timeouts in kExplainEveryNs name the absent clients. At 4,096 clients that
// is a few milliseconds of work.
constexpr std::uint64_t kExplainEveryNs = 100'000'000;
constexpr std::size_t kExplainAtOnce = 16;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;  // Clang 14 needs this guide.

void serve_now(Request&& request, Serving& here) {
  std::visit([&](auto&& kind) { std::forward<decltype(kind)>(kind).serve(here); },
             std::move(request));
}

std::size_t bytes_of(const std::vector<std::string>& texts) {
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size() + kReplyTextBytes;
  return bytes;
}

}  // namespace

std::size_t cost_of(const Reply& reply) {
  return std::visit(
      Overloaded{
          [](const Value& value) { return value.bytes.size(); },
          [](const Values& values) { return bytes_of(values.bytes); },
          [](const Keys& keys) { return bytes_of(keys.keys); },
          [](const Compared& compared) { return compared.current ? compared.current->size() : 0; },
          [](const Changed& changed) { return changed.key.size() + changed.value.size(); },
          [](const Error& error) { return error.message.size(); },
          [](const Popped& popped) { return popped.item ? popped.item->size() : 0; },
          [](const auto&) { return std::size_t{8}; }},
      reply.body);
}

Result<ClientId> Engine::join(ClientInfo info, std::uint64_t now_ns) {
  if (info.generation != generation_) {
    return Error{Code::kFailedPrecondition, "generation " + std::to_string(info.generation) +
                                                " is not served: the store serves generation " +
                                                std::to_string(generation_)};
  }
  const ClientId id = next_client_++;
  if (info.session != 0) answered_.begin(info.session);
  clients_[id] = {.info = std::move(info), .last_ns = now_ns};
  return id;
}

void Engine::leave(ClientId client) {
  for (const WaiterId waiting : waiters_.of_client(client)) {
    note_loss(*waiters_.find(waiting));
    forget_wait(waiting, waiters_, contents_);
  }
  watches_.end(client);
  const auto departed = clients_.find(client);
  if (departed == clients_.end()) return;
  // Sessions of earlier generations have been forgotten.
  const ClientInfo& info = departed->second.info;
  if (info.session != 0 && info.generation == generation_) answered_.end(info.session);
  clients_.erase(departed);
}

void Engine::describe(ClientId client, std::uint32_t pid) {
  const auto found = clients_.find(client);
  if (found != clients_.end() && pid != 0) found->second.info.pid = pid;
}

void Engine::apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
                   Replies& out) {
  const auto found = clients_.find(client);
  IVY_ASSERT(found != clients_.end());
  KnownClient& known = found->second;
  requests_ += 1;
  // A client that only requests the wait graph takes no part in the job.
  if (!std::holds_alternative<Why>(body)) {
    const std::string* key = NamedKeys(body).first();
    known.last_ns = now_ns;
    known.last_op = command_of(body).name;
    known.last_key = key == nullptr ? std::string_view() : std::string_view(*key);
  }
  if (known.info.generation != generation_) {
    return answer_to(
        client, request,
        Error{Code::kFailedPrecondition, "generation " + std::to_string(known.info.generation) +
                                             " has ended: the store serves generation " +
                                             std::to_string(generation_)},
        out);
  }
  Serving here{contents_, waiters_, watches_, clients_,         limits_,
               out,       client,   request,  known.info.space, now_ns};
  const Numbered* numbered = numbered_of(body);
  if (numbered != nullptr && numbered->number != 0 && known.info.session != 0) {
    serve(Numbered(*numbered), known.info.session, std::move(body), here);
  } else {
    serve_now(std::move(body), here);
  }
}

// Serves a numbered request. Such a request never waits, so its own answer is the first reply.
void Engine::serve(const Numbered& numbered, SessionId session, Request request, Serving& here) {
  const AnsweredRequests::Finding found = answered_.find(session, numbered);
  switch (found.known) {
    case AnsweredRequests::Known::kAnswered:
      return std::visit([&](const auto& body) { here.answer(body); }, *found.answer);
    case AnsweredRequests::Known::kPast:
      return here.answer(Error{Code::kCancelled,
                               "a duplicate of a request that its client has already completed"});
    case AnsweredRequests::Known::kUnclear:
      return here.answer(
          Error{Code::kUnavailable,
                "the store no longer knows the requests of this client's last connection, so "
                "it is unknown whether the request was served"});
    case AnsweredRequests::Known::kTooMany:
      return here.answer(
          Error{Code::kResourceExhausted,
                "the store keeps too many replies for clients that may repeat a request"});
    case AnsweredRequests::Known::kNew:
      break;
  }
  const std::size_t first = here.out.size();
  serve_now(std::move(request), here);
  const ReplyBody& body = here.out[first].body;
  AnsweredRequests::Answer given = Done{};
  if (const auto* number = std::get_if<Number>(&body)) given = *number;
  if (const auto* error = std::get_if<Error>(&body)) given = *error;
  answered_.remember(session, numbered.number, std::move(given));
}

// Returns whether this timeout may name the absent clients. Each such text scans all clients, so if
// thousands of waits end at the same time, only some texts do.
bool Engine::admit_explanation(std::uint64_t now_ns) {
  if (now_ns - explained_since_ns_ >= kExplainEveryNs) {
    explained_since_ns_ = now_ns;
    explained_ = 0;
  }
  return explained_++ < kExplainAtOnce;
}

std::string Engine::overdue_text(const Waiting& overdue, std::uint64_t now_ns) {
  std::vector<std::string> names;
  for (const std::uint32_t member : overdue.absent) names.push_back(std::to_string(member));
  for (const std::string& key : overdue.missing) names.push_back(shown_key(key));
  const std::string list = shown_list(names, overdue.missing_count, names.size());
  const std::string what = overdue.missing.empty()      ? "; members that have not arrived: "
                           : overdue.missing_count == 1 ? " "
                                                        : "s ";
  return "waited " + tenths_text(static_cast<std::int64_t>(now_ns - overdue.since_ns)) + " for " +
         overdue.what + what + list;
}

std::uint64_t Engine::advance(std::uint64_t now_ns, Replies& out) {
  answered_.advance(now_ns);
  if (!lost_barriers_.empty()) answer_lost_barriers(out);
  // Use the graph from before the first answer, so that clients that are answered now still count
  // as waiting.
  std::optional<WaitGraph> before;
  while (const WaiterId due = waiters_.due(now_ns)) {
    const Waiting overdue = store::describe(due, waiters_, contents_, clients_);
    std::string text = overdue_text(overdue, now_ns);
    if (admit_explanation(now_ns)) {
      if (!before) before = wait_graph();
      text += "; " + explain_absence(*before, overdue, now_ns);
    }
    const Waiter& waiter = *waiters_.find(due);
    answer_to(waiter.client, waiter.request, Error{Code::kDeadlineExceeded, std::move(text)}, out);
    forget_wait(due, waiters_, contents_);
  }
  return waiters_.next_deadline_ns();
}

// Marks the barrier of this wait as lost with its client. advance() notifies the others.
void Engine::note_loss(const Waiter& waiter) {
  if (waiter.kind != WaitKind::kBarrier) return;
  Contents::Barrier* barrier = contents_.find_barrier(waiter.space, waiter.keys.front());
  if (barrier == nullptr || !barrier->ends_with_a_loss || barrier->lost_member) return;
  barrier->lost_member = waiter.member;
  lost_barriers_.emplace_back(waiter.space, waiter.keys.front());
}

void Engine::answer_lost_barriers(Replies& out) {
  for (const auto& [space, name] : std::exchange(lost_barriers_, {})) {
    Contents::Barrier* barrier = contents_.find_barrier(space, name);
    if (barrier == nullptr || !barrier->lost_member) continue;
    for (const auto& [member, ids] : std::exchange(barrier->arrived, {})) {
      for (const WaiterId id : ids) {
        const Waiter& waiter = *waiters_.find(id);
        answer_to(waiter.client, waiter.request, barrier->loss(), out);
        waiters_.remove(id);
      }
    }
  }
}

void Engine::begin_generation(std::uint32_t generation, Replies& out) {
  const Error ended{Code::kAborted, "generation " + std::to_string(generation_) + " has ended"};
  for (const WaiterId id : waiters_.all()) {
    const Waiter& waiter = *waiters_.find(id);
    answer_to(waiter.client, waiter.request, ended, out);
    waiters_.remove(id);
  }
  contents_.clear();
  watches_.clear();
  answered_.clear();
  generation_ = generation;
}

}  // namespace ivy::store
