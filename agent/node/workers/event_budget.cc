// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/event_budget.h"

#include <utility>

namespace ivy {
namespace {

std::uint64_t text_bytes(const Event& event) {
  return event.exited().error_file().size() + event.start_failed().path().size();
}

// Removes an event's texts: an exit without its reason is better than no exit.
std::string bare_event(Event event) {
  if (event.has_exited()) event.mutable_exited()->clear_error_file();
  if (event.has_start_failed()) event.mutable_start_failed()->clear_path();
  return event.SerializeAsString();
}

}  // namespace

bool EventBudget::is_essential(const Event& event) {
  return event.has_started() || event.has_start_failed() || event.has_exited() ||
         event.has_report() || event.has_store_lost() || event.has_mpi_lost() ||
         event.has_jax_service_lost();
}

std::optional<std::string> EventBudget::admit(const Event& event, std::uint64_t waiting_bytes) {
  std::string bytes = event.SerializeAsString();
  if (event.has_rank_updates()) {
    const std::uint64_t bound =
        event.rank_updates().reports_size() > 0 ? kMaxTextBytes : kMaxUpdateBytes;
    if (waiting_bytes + bytes.size() <= bound) return bytes;
    holds_updates_ = true;
    return std::nullopt;
  }
  if (keeps_ && is_essential(event)) keep(event, bytes);
  if (text_bytes(event) > 0 && waiting_bytes + bytes.size() > kMaxTextBytes)
    return bare_event(event);
  return bytes;
}

bool EventBudget::take_held_updates(std::uint64_t waiting_bytes) {
  if (waiting_bytes > kMaxUpdateBytes / 2) return false;
  return std::exchange(holds_updates_, false);
}

void EventBudget::keep(const Event& event, std::string bytes) {
  const bool fits = kept_text_bytes_ + text_bytes(event) <= kMaxTextBytes;
  if (fits) kept_text_bytes_ += text_bytes(event);
  kept_.push_back(fits ? std::move(bytes) : bare_event(event));
}

void EventBudget::forget_kept() {
  kept_.clear();
  kept_text_bytes_ = 0;
}

}  // namespace ivy
