#include "rendezvous/log/held_replies.h"

#include <utility>
#include <variant>

namespace ivy::store {
namespace {

std::size_t bytes_of(const Reply& reply) { return kRequestCost + cost_of(reply); }

}  // namespace

void HeldReplies::hold(std::uint64_t recorded, Replies& replies) {
  for (Reply& reply : replies) {
    bytes_ += bytes_of(reply);
    held_.push_back({recorded, std::move(reply)});
  }
  replies.clear();
}

Replies HeldReplies::release(std::uint64_t committed) {
  Replies released;
  while (!held_.empty() && held_.front().recorded <= committed) {
    bytes_ -= bytes_of(held_.front().reply);
    released.push_back(std::move(held_.front().reply));
    held_.pop_front();
  }
  return released;
}

Replies HeldReplies::fail(const Error& error) {
  Replies failed;
  for (Held& held : std::exchange(held_, {})) {
    if (std::holds_alternative<Changed>(held.reply.body)) continue;
    held.reply.body = error;
    failed.push_back(std::move(held.reply));
  }
  bytes_ = 0;
  return failed;
}

}  // namespace ivy::store
