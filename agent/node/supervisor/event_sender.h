// SPDX-License-Identifier: Apache-2.0
// Sends this host's events to the launcher, limited by the number of unacknowledged bytes
// (event_budget.h), and sends them again to a launcher that takes the job over. Derives the
// supervisor's exit code from them. Thread: the loop's. It calls channel and control server only
// between their construction and destruction.
#pragma once

#include <string>
#include <vector>

#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/event_sink.h"
#include "agent/node/workers/event_budget.h"
#include "agent/node/workers/output_pump.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy {

// The outcome of this generation's workers, derived from their events. Pure.
class JobOutcome {
 public:
  void note(const Event& event);
  void forget() { *this = JobOutcome(); }
  // Returns true if processes survived SIGKILL: nothing may be started on this host any more.
  bool has_leftovers() const { return has_leftovers_; }
  // Returns the exit code for a host without leftovers: one of the codes in supervisor_start.h.
  int exit_code(bool has_workers, bool launcher_lost) const;

 private:
  bool has_leftovers_ = false;
  bool worker_failed_ = false;       // A worker failed before any stop.
  bool worker_was_stopped_ = false;  // A worker exited after a stop was ordered.
};

// Returns how far each output stream of `generation` was sent to the last launcher. `waiting` are
// the chunks that the session still holds: they are sent to the new launcher. Pure.
TakenOver streams_taken_over(const std::vector<OutputPump::Progress>& progress,
                             const std::vector<session::OutputChunk>& waiting,
                             std::uint32_t generation);

class EventSender final : public EventSink {
 public:
  EventSender(CommandChannel& channel, const ControlServer& control)
      : channel_(channel), control_(control) {}

  void send(const Event& event) override;
  // Sends the updates that had to wait, if there is room now.
  void send_held_updates();
  // Keeps events from now on, because another launcher may take the job over.
  void keep_for_takeover() { budget_.keep_for_takeover(); }
  // Sends `taken` and all kept events to a launcher that has taken the job over.
  void send_again(TakenOver taken);
  void forget_generation();

  // Returns true if an event was dropped without which the launcher cannot determine the job's exit
  // code. This happens only if a launcher sends many requests and never acknowledges the answers.
  bool were_lost() const { return were_lost_; }
  const JobOutcome& outcome() const { return outcome_; }

 private:
  void pass_on(const Event& event, const std::string& bytes);

  CommandChannel& channel_;
  const ControlServer& control_;
  EventBudget budget_;
  JobOutcome outcome_;
  bool were_lost_ = false;
};

}  // namespace ivy
