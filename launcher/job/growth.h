// SPDX-License-Identifier: Apache-2.0
// --grow: dials hosts again that did not come up, or that were lost, while the job runs without
// them. A host that answers waits like a spare, and joins at the next restart. If no restart is
// due, reform() stops the workers for it, at most once in --grow:
//
//   tick() ─▶ dial() ─▶ greeted() ─▶ tick(): reform() ─▶ stop_workers() ─▶ Restarts::decide()
//              ▲ └─▶ failed(): again after a pause
//
// Hosts that were excluded for another reason than their network or machine are not dialled again.
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/store_controller.h"
#include "launcher/links/transport_context.h"

namespace ivy {

// The pauses between the attempts to reach one host: 5 s, doubled up to 60 s. Pure.
class DialPauses {
 public:
  using Time = std::chrono::steady_clock::time_point;
  bool has_begun() const { return next_at_ != Time(); }
  bool is_due(Time now) const { return now >= next_at_; }
  // The host must not be dialled before this time.
  void wait_until(Time time) { next_at_ = time; }
  void failed(Time now);
  void succeeded() { pause_ = kFirst; }

 private:
  static constexpr std::chrono::seconds kFirst{5};
  static constexpr std::chrono::seconds kLongest{60};
  std::chrono::seconds pause_ = kFirst;
  Time next_at_;
};

class Growth {
 public:
  Growth(JobContext& job, JobPlanner& planner, BringUp& bring_up, StoreController& store)
      : job_(job),
        planner_(planner),
        bring_up_(bring_up),
        store_(store),
        hosts_(job.hosts.size()),
        timer_(job.loop) {}

  // Call once, if the job may grow.
  void start(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events);
  void stop() { timer_.cancel(); }
  // A host that may return has left the job; its workers have ended at this time.
  void lost(std::size_t index, std::chrono::milliseconds until_end);
  // A host that is being dialled again has not come up, or has answered Hello.
  void failed(std::size_t index, const RemoteText& why);
  void greeted(std::size_t index);

  // The workers are being stopped so that other hosts can join.
  bool is_reforming() const { return is_reforming_; }
  // Returns why the attempt has ended: "stopped for node03, which is ready (--grow)".
  std::string reason() const;
  // An attempt has started.
  void began();

 private:
  void tick();
  void dial(std::size_t index);
  void reform();
  void stop_workers();

  JobContext& job_;
  JobPlanner& planner_;
  BringUp& bring_up_;
  StoreController& store_;
  std::shared_ptr<TransportContext> transports_;
  HostSessionEvents* events_ = nullptr;
  std::vector<DialPauses> hosts_;
  bool is_reforming_ = false;
  DialPauses::Time began_at_;                // When the present attempt started.
  std::optional<DialPauses::Time> stop_at_;  // After the notice to the ranks: when to stop them.
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
