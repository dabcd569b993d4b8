// SPDX-License-Identifier: Apache-2.0
// Sends this host's events to the launcher, within the bounds of what may wait for its
// acknowledgement (event_budget.h), and again to another launcher that takes the job over. Thread:
// the loop's. Lifetime: outlived by channel and control server.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/job_outcome.h"
#include "agent/node/workers/event_budget.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class EventSender {
 public:
  // `lost` is called once, when an event is lost without which the right verdict cannot be reached
  // any more. That happens only for a launcher that sends many requests and never acknowledges an
  // answer.
  EventSender(CommandChannel& channel, const ControlServer& control, std::function<void()> lost)
      : channel_(channel), control_(control), lost_(std::move(lost)) {}

  void send(const Event& event);
  // Sends the news that had to wait, if there is room now.
  void send_held_news();
  // From now on another launcher may take the job over.
  void keep_for_takeover() { budget_.keep_for_takeover(); }
  // It has done so, and gets all that it must know.
  void send_again(TakenOver taken);
  void forget_generation();

  bool were_lost() const { return were_lost_; }
  const JobOutcome& outcome() const { return outcome_; }

 private:
  void pass_on(const Event& event, const std::string& bytes);
  void lose();

  CommandChannel& channel_;
  const ControlServer& control_;
  const std::function<void()> lost_;
  EventBudget budget_;
  JobOutcome outcome_;
  bool were_lost_ = false;
};

}  // namespace ivy
