// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/event_sender.h"

#include <map>
#include <optional>
#include <utility>

#include "agent/node/supervisor/supervisor_start.h"

namespace ivy {

void JobOutcome::note(const Event& event) {
  const Exited& exited = event.exited();
  if (event.has_exited() && exited.after_stop()) worker_was_stopped_ = true;
  if (event.has_exited() && !exited.after_stop())
    worker_failed_ |= exited.code() != 0 || exited.signal() != 0;
  if (event.has_start_failed()) worker_failed_ = true;
  has_leftovers_ |= event.has_report() && !event.report().clean();
}

int JobOutcome::exit_code(bool has_workers, bool launcher_lost) const {
  if (worker_failed_) return kSupervisorWorkerFailed;
  if (worker_was_stopped_) return launcher_lost ? kSupervisorLauncherLost : kSupervisorStopped;
  return has_workers ? kSupervisorOk : kSupervisorNothingRan;
}

TakenOver streams_taken_over(const std::vector<OutputPump::Progress>& progress,
                             const std::vector<session::OutputChunk>& waiting,
                             std::uint32_t generation) {
  struct Rest {
    std::uint64_t bytes = 0;
    bool has_end = false;
  };
  std::map<std::pair<std::uint32_t, std::uint8_t>, Rest> rests;
  for (const session::OutputChunk& chunk : waiting) {
    Rest& rest = rests[{chunk.rank, chunk.stream}];
    rest.bytes += chunk.bytes.size();
    rest.has_end |= chunk.end;
  }
  TakenOver taken;
  taken.set_generation(generation);
  for (const OutputPump::Progress& stream : progress) {
    if (stream.name.generation != generation) continue;
    const Rest rest = rests[{stream.name.rank, stream.name.stream}];
    StreamPosition& position = *taken.add_streams();
    position.set_rank(stream.name.rank);
    position.set_stream(stream.name.stream);
    position.set_bytes(stream.bytes - rest.bytes);
    position.set_ended(stream.ended && !rest.has_end);
  }
  return taken;
}

void EventSender::send(const Event& event) {
  outcome_.note(event);
  // Only the rank's earlier events show whether an exit is a death, so send held ones first.
  RankUpdates updates;
  if (event.has_exited() && budget_.holds_updates() &&
      control_.add_known(event.exited().rank(), updates)) {
    Event before;
    *before.mutable_rank_updates() = std::move(updates);
    pass_on(before, before.SerializeAsString());
  }
  const std::uint64_t waiting_bytes = channel_.session().waiting_control_bytes();
  if (const std::optional<std::string> bytes = budget_.admit(event, waiting_bytes))
    pass_on(event, *bytes);
}

void EventSender::pass_on(const Event& event, const std::string& bytes) {
  const bool is_sent = channel_.session().send(session::FrameType::kEvent, bytes).ok();
  if (is_sent) channel_.flush();
  if (!is_sent && EventBudget::is_essential(event)) were_lost_ = true;
}

void EventSender::send_held_updates() {
  if (!budget_.take_held_updates(channel_.session().waiting_control_bytes())) return;
  Event event;
  if (control_.add_all_known(*event.mutable_rank_updates())) send(event);
}

void EventSender::send_again(TakenOver taken) {
  std::vector<std::string> events;
  // Sent before the exits, because the launcher must know by then which exits are not deaths.
  Event updates;
  if (control_.add_all_known(*updates.mutable_rank_updates()))
    events.push_back(updates.SerializeAsString());
  events.insert(events.end(), budget_.kept().begin(), budget_.kept().end());
  taken.set_events(static_cast<std::uint32_t>(events.size()));
  Event first;
  *first.mutable_taken_over() = std::move(taken);
  events.insert(events.begin(), first.SerializeAsString());
  // The queue was just emptied, so it has room for everything that it contained before.
  for (std::string& bytes : events) {
    if (channel_.session().send(session::FrameType::kEvent, std::move(bytes)).ok()) continue;
    were_lost_ = true;
    return;
  }
}

void EventSender::forget_generation() {
  outcome_.forget();
  budget_.forget_kept();
}

}  // namespace ivy
