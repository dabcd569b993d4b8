// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/event_sender.h"

#include <optional>
#include <vector>

namespace ivy {

void EventSender::send(const Event& event) {
  outcome_.note(event);
  // Whether an exit is a death follows only from the rank's earlier events: send held ones first.
  News news;
  if (event.has_exited() && budget_.holds_news() && control_.known(event.exited().rank(), news)) {
    Event before;
    *before.mutable_news() = std::move(news);
    pass_on(before, before.SerializeAsString());
  }
  const std::uint64_t waiting_bytes = channel_.session().waiting_control_bytes();
  if (const std::optional<std::string> bytes = budget_.admit(event, waiting_bytes))
    pass_on(event, *bytes);
}

void EventSender::pass_on(const Event& event, const std::string& bytes) {
  const bool is_sent = channel_.session().send(link::FrameType::kEvent, bytes).ok();
  if (is_sent) channel_.flush();
  if (!is_sent && EventBudget::is_essential(event)) lose();
}

void EventSender::lose() {
  if (!std::exchange(were_lost_, true)) lost_();
}

void EventSender::send_held_news() {
  if (!budget_.take_held_news(channel_.session().waiting_control_bytes())) return;
  Event event;
  if (control_.known(*event.mutable_news())) send(event);
}

void EventSender::send_again(TakenOver taken) {
  std::vector<std::string> events;
  // Sent before the exits: the launcher must know by then which exits are no deaths.
  Event news;
  if (control_.known(*news.mutable_news())) events.push_back(news.SerializeAsString());
  events.insert(events.end(), budget_.kept().begin(), budget_.kept().end());
  taken.set_events(static_cast<std::uint32_t>(events.size()));
  Event first;
  *first.mutable_taken_over() = std::move(taken);
  events.insert(events.begin(), first.SerializeAsString());
  // The queue was just emptied, so it has room for all that it held before.
  for (std::string& bytes : events)
    if (!channel_.session().send(link::FrameType::kEvent, std::move(bytes)).ok()) return lose();
}

void EventSender::forget_generation() {
  outcome_.forget();
  budget_.forget_kept();
}

}  // namespace ivy
