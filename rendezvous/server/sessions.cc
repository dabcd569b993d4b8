// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/sessions.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ivy::store {
namespace {

// A larger buffer is freed as soon as it is empty, not when the connection closes.
constexpr std::size_t kKeptBytes = 256u << 10;

}  // namespace

Sent send_some(int fd, std::string& unsent, std::size_t& sent) {
  Sent outcome = Sent::kAll;
  while (sent < unsent.size() && outcome == Sent::kAll) {
    const ssize_t count =
        send(fd, unsent.data() + sent, unsent.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (count < 0 && errno != EINTR) {
      outcome = errno == EAGAIN ? Sent::kNotAll : Sent::kBroken;
    }
  }
  if (sent == unsent.size()) {
    if (unsent.capacity() > kKeptBytes) unsent = {};
    unsent.clear();
    sent = 0;
  } else if (sent > unsent.size() / 2) {  // So each byte is moved once on average.
    unsent.erase(0, sent);
    sent = 0;
  }
  return outcome;
}

bool Session::watch(const Readiness& readiness) {
  if (in_set ? watched == wanted : wanted == Wanted{}) return true;
  if (in_set) {
    readiness.change(socket.get(), this, wanted);
  } else if (!readiness.add(socket.get(), this, wanted)) {
    return false;
  }
  in_set = true;
  watched = wanted;
  return true;
}

void Session::stop_watching(const Readiness& readiness) {
  if (std::exchange(in_set, false)) readiness.remove(socket.get());
}

void Sessions::add(const SessionPointer& session) {
  session->position = all_.insert(all_.end(), session);
  torch_count_ += session->dialect == Dialect::kTorch ? 1 : 0;
  if (session->connection->is_authenticated()) return;
  session->unauthenticated_position =
      unauthenticated_.insert(unauthenticated_.end(), session.get());
  session->unauthenticated = true;
}

void Sessions::remove(Session& session) {
  if (session.unauthenticated) unauthenticated_.erase(session.unauthenticated_position);
  session.unauthenticated = false;
  by_client_.erase(session.client);
  torch_count_ -= session.dialect == Dialect::kTorch ? 1 : 0;
  torch_bytes_ -= session.counted_bytes;
  session.counted_bytes = 0;
  all_.erase(session.position);
}

SessionPointer Sessions::find(ClientId client) const {
  const auto found = by_client_.find(client);
  return found == by_client_.end() ? nullptr : *found->second->position;
}

void Sessions::update(Session& session) {
  if (session.unauthenticated && session.connection->is_authenticated()) {
    unauthenticated_.erase(session.unauthenticated_position);
    session.unauthenticated = false;
  }
  if (session.client == 0) {
    session.client = session.connection->client();
    if (session.client != 0) by_client_[session.client] = &session;
  }
}

SessionPointer Sessions::oldest_unauthenticated() const {
  return unauthenticated_.empty() ? nullptr : *unauthenticated_.front()->position;
}

void Sessions::count_bytes(Session& session) {
  if (session.dialect != Dialect::kTorch || session.closed) return;
  const std::size_t now = session.connection->kept_bytes() + session.connection->unsent.size();
  torch_bytes_ = torch_bytes_ - session.counted_bytes + now;
  session.counted_bytes = now;
}

SessionPointer Sessions::largest_torch() const {
  return *std::max_element(all_.begin(), all_.end(),
                           [](const SessionPointer& one, const SessionPointer& other) {
                             return one->counted_bytes < other->counted_bytes;
                           });
}

}  // namespace ivy::store
