// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/answered_requests.h"

#include <utility>

namespace ivy::store {

AnsweredRequests::Session& AnsweredRequests::session_of(SessionId id) {
  const auto [found, is_new] = sessions_.try_emplace(id);
  if (is_new) found->second.has_gaps = dropped_early_;
  return found->second;
}

void AnsweredRequests::begin(SessionId session) {
  Session& known = session_of(session);
  if (known.connections++ == 0) ended_.erase({known.ended_ns, session});
}

void AnsweredRequests::end(SessionId session) {
  const auto found = sessions_.find(session);
  // Clients of the previous generation have no session here: clear() has removed it.
  if (found == sessions_.end() || found->second.connections == 0) return;
  Session& known = found->second;
  if (--known.connections > 0) return;
  if (known.answers.empty()) {
    sessions_.erase(found);
    return;
  }
  known.ended_ns = now_ns_;
  ended_.insert({now_ns_, session});
}

AnsweredRequests::Finding AnsweredRequests::find(SessionId session, const Numbered& request) {
  Session& known = session_of(session);
  raise_lowest(known, request.lowest);
  if (request.number < known.lowest) return {Known::kPast};
  const auto found = known.answers.find(request.number);
  if (found != known.answers.end()) return {Known::kAnswered, &found->second};
  if (request.again && known.has_gaps) return {Known::kUnclear};
  if (known.answers.size() >= limits_.answers_per_session || !make_room()) return {Known::kTooMany};
  return {Known::kNew};
}

void AnsweredRequests::remember(SessionId session, std::uint64_t number, Answer answer) {
  answers_ += session_of(session).answers.insert_or_assign(number, std::move(answer)).second;
}

void AnsweredRequests::clear() {
  sessions_.clear();
  ended_.clear();
  answers_ = 0;
  dropped_early_ = false;
}

void AnsweredRequests::raise_lowest(Session& session, std::uint64_t lowest) {
  if (lowest <= session.lowest) return;
  session.lowest = lowest;
  const auto end = session.answers.lower_bound(lowest);
  for (auto at = session.answers.begin(); at != end; at = session.answers.erase(at)) answers_ -= 1;
}

// Forgets sessions without a connection until there is room. Returns false if every remembered
// session still has one.
bool AnsweredRequests::make_room() {
  while (answers_ >= limits_.answers) {
    if (ended_.empty()) return false;
    forget_early();
  }
  return true;
}

void AnsweredRequests::forget_early() {
  dropped_early_ = true;
  forget(sessions_.find(ended_.begin()->second));
}

void AnsweredRequests::forget(Sessions::iterator session) {
  answers_ -= session->second.answers.size();
  ended_.erase({session->second.ended_ns, session->first});
  sessions_.erase(session);
}

void AnsweredRequests::forget_ended() {
  while (!ended_.empty()) {
    const auto [ended_ns, session] = *ended_.begin();
    if (now_ns_ - ended_ns < limits_.kept_ns) return;
    forget(sessions_.find(session));
  }
}

}  // namespace ivy::store
