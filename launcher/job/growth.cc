// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/growth.h"

#include <algorithm>
#include <utility>

#include "launcher/options/option_values.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::chrono::milliseconds kGrowthTick{500};
// Beyond its lease and its grace, a supervisor needs this long to exit.
constexpr std::chrono::milliseconds kExitMargin{2'000};

}  // namespace

void DialPauses::failed(Time now) {
  next_at_ = now + pause_;
  pause_ = std::min(pause_ * 2, kLongest);
}

void Growth::start(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events) {
  transports_ = transports;
  events_ = &events;
  tick();
}

void Growth::tick() {
  timer_.expires_after(kGrowthTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || job_.phase.state() == JobState::kDone) return;
    tick();
  });
  const JobState state = job_.phase.state();
  if (is_before_start(state) || state == JobState::kKilling || job_.has_reason()) return;
  const auto now = steady_now();
  if (began_at_ == DialPauses::Time()) began_at_ = now;
  // While an attempt is being stopped, the job still settles how a lost host's ranks have ended. If
  // the host were already back, the job would wait for its reports of them.
  const bool may_dial = state == JobState::kRunning || state == JobState::kRestarting;
  for (std::size_t index = 0; may_dial && index < job_.hosts.size(); ++index) {
    const HostRecord& host = job_.hosts[index];
    if (!host.excluded || !host.excluded->may_return || host.is_returning) continue;
    if (!hosts_[index].has_begun()) hosts_[index].failed(now);
    if (hosts_[index].is_due(now)) dial(index);
  }
  if (state != JobState::kRunning) return;
  if (stop_at_ && now >= *stop_at_) return stop_workers();
  if (!is_reforming_ && job_.hosts.has_more_hosts() && now - began_at_ >= *job_.options.grow)
    reform();
}

void Growth::dial(std::size_t index) {
  std::unique_ptr<HostSession> session = bring_up_.make_session(index, transports_, *events_);
  HostSession& opened = *session;
  job_.hosts.renew_session(index, std::move(session));
  opened.open();
}

// The host's supervisor of this job must have exited before it is dialled: a new session would
// reach it otherwise.
void Growth::lost(std::size_t index, std::chrono::milliseconds until_end) {
  hosts_[index].failed(steady_now());
  if (until_end.count() > 0) hosts_[index].wait_until(steady_now() + until_end + kExitMargin);
}

void Growth::failed(std::size_t index, const RemoteText& why) {
  HostRecord& host = job_.hosts[index];
  host.is_returning = false;
  host.excluded->reason = why;
  hosts_[index].failed(steady_now());
}

void Growth::greeted(std::size_t index) {
  HostRecord& host = job_.hosts[index];
  if (host.failure) {
    host.session->close();
    return failed(index, host.failure->message);
  }
  hosts_[index].succeeded();
  job_.hosts.rejoin(index);
  if (const std::string unfit = planner_.unfit_spare(index); !unfit.empty()) {
    job_.hosts.exclude(index, {.reason = unfit});
    return job_.print(host.name() + " is up again, but cannot be used: " + unfit);
  }
  job_.reports.host_joined(host.name());
  // Each host that joins may be lost again.
  ++job_.spare_hosts;
  store_.admit(host);
  bring_up_.order_check(index);
  job_.print(host.name() + " is ready and joins at the next restart");
}

std::string Growth::reason() const {
  return "stopped for " + fold_host_names(job_.hosts.spare_names()) + " (--grow)";
}

void Growth::reform() {
  is_reforming_ = true;
  ++job_.spare_hosts;
  const std::optional<int> signal = job_.options.preempt_signal;
  const std::string hosts = fold_host_names(job_.hosts.spare_names());
  if (!signal) {
    job_.print("restarting the workers with " + hosts + " (--grow)");
    return stop_workers();
  }
  const std::chrono::milliseconds grace = job_.grace(kGraceByRequest);
  job_.print(signal_name(*signal) + " to " + std::to_string(job_.workers.running()) +
             " ranks, which restart with " + hosts + " in " +
             std::to_string(std::chrono::duration_cast<std::chrono::seconds>(grace).count()) +
             " s (--grow)");
  stop_at_ = steady_now() + grace;
  job_.signal_workers(*signal);
}

void Growth::stop_workers() {
  stop_at_.reset();
  job_.phase.apply(JobEvent::kMemberLost);
}

void Growth::began() {
  is_reforming_ = false;
  stop_at_.reset();
  began_at_ = steady_now();
}

}  // namespace ivy
