// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/host_losses.h"

#include <algorithm>
#include <utility>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Allows for the time of the kill, and for the two processes' checks of their clocks
// (kLauncherTick, kSupervisorTick).
constexpr milliseconds kLeaseMargin{1'000};

Diagnostic loss_text(const std::string& host, HostLoss loss, const RemoteText& message,
                     const std::vector<std::uint32_t>& ranks) {
  Diagnostic text;
  text.where = host;
  text.cause = message.lines();
  text.exit_code = kExitHostLost;
  if (loss == HostLoss::kSupervisor) {
    text.id = "IVY-R007";
    text.what = "the supervisor on host " + host + " was lost";
    text.fix =
        "its workers have been killed; the kernel log of the host may say what killed the "
        "supervisor";
    return text;
  }
  text.id = "IVY-R006";
  text.what = "host " + host + " was lost";
  text.fix =
      host + "'s workers stop by themselves when the lease expires; check the host and its network";
  // The ranks may have succeeded before the connection was lost.
  if (!ranks.empty()) text.cause += "\nthe state of " + named_ranks(ranks) + " is unknown";
  return text;
}

}  // namespace

void HostLosses::lost(std::size_t index, HostLoss loss, const RemoteText& message) {
  HostRecord& host = job_.hosts[index];
  growth_.lost(index,
               end_of_workers(index, loss == HostLoss::kHost ? LauncherReason::kHostLost
                                                             : LauncherReason::kSupervisorLost));
  if (host.is_spare) return lose_spare(index, loss, message);
  host.lost = true;
  if (host.reported) {
    // The host has reported, so this attempt is complete, and only later ones must do without it.
    if (job_.hosts.may_lose_hosts())
      host.excluded = ExcludedHost{.name = host.name(), .reason = message, .may_return = true};
    if (job_.hosts.has_spares() && job_.phase.state() != JobState::kDone)
      job_.print(loss_text(host.name(), loss, message, {}).what + ": " + message.line());
    return job_.phase.check_end();
  }
  const std::vector<std::uint32_t> ranks = job_.workers.unfinished_on(index);
  job_.reports.host_lost(host.name(), loss, message, ranks);
  LauncherEnd end;
  end.reason =
      loss == HostLoss::kHost ? LauncherReason::kHostLost : LauncherReason::kSupervisorLost;
  end.diagnostic = loss_text(host.name(), loss, message, ranks);
  end.at_ns = host.session->last_received_ns();
  if (const auto named = named_failure(nullptr, end)) job_.faults.named(*named, monotonic_ns());
  if (replaces_host(index, ranks, loss, end, message)) return;
  if (lose_member(index, end, end.diagnostic.what + ": " + message.line())) return;
  if (continues_without_host(index, ranks, end, message)) {
    ranks_.lost(index, ranks, loss);
    return job_.phase.check_end();
  }
  end_job(index, std::move(end), message);
  ranks_.lost(index, ranks, loss);
  job_.phase.apply(JobEvent::kHostLost);
  job_.phase.check_end();
}

void HostLosses::lose_spare(std::size_t index, HostLoss loss, const RemoteText& message) {
  job_.reports.host_lost(job_.hosts[index].name(), loss, message, {});
  job_.hosts.exclude(index, {.reason = message, .may_return = true});
  if (job_.is_muted || job_.phase.state() == JobState::kDone) return;
  const std::size_t left = job_.hosts.spare_names().size();
  job_.print("spare " + job_.hosts[index].name() + " was lost: " + message.line() +
             "; the job continues with " + (left == 0 ? "no spare" : counted(left, "spare")));
  job_.phase.check_end_later();
}

bool HostLosses::replaces_host(std::size_t index, const std::vector<std::uint32_t>& ranks,
                               HostLoss loss, const LauncherEnd& end, const RemoteText& message) {
  if (job_.options.on_failure != OnFailure::kReplace || ranks.empty() || job_.has_reason() ||
      job_.phase.state() != JobState::kRunning || !job_.hosts.can_do_without(index))
    return false;
  const std::string what = end.diagnostic.what + ", with " + named_ranks(ranks);
  const bool had_store = job_.plan.hosts.front().host_index == index;
  if (had_store || !ranks_.losses().can_replace(index)) {
    job_.print(what + "; all workers start again, because " +
               (had_store ? "the job's store ran on this host"
                          : "no worker is left from which a new one could get the state") +
               " (--on-failure replace)");
    return false;
  }
  ranks_.lost(index, ranks, loss);
  const milliseconds pause = std::max(milliseconds(0), end_of_workers(index, end.reason));
  job_.hosts.exclude(index, {.reason = message});
  job_.print(what + "; " + counted(job_.workers.running() - ranks.size(), "other worker") +
             " continue (--on-failure replace)");
  const int plan_index = job_.hosts[index].plan_index;
  if (!planner_.plan_without_excluded_hosts()) return true;
  const PlannedHost& planned = job_.plan.hosts[static_cast<std::size_t>(plan_index)];
  ranks_.losses().replace_host(ranks, planned.host_index, end);
  ranks_.relay().ranks_moved(ranks, planned.host_index);
  for (const RankLocation& location : rank_locations(job_.plan))
    if (location.host_index == static_cast<int>(planned.host_index))
      job_.screen.output().move_rank(location);
  // The ranks of a spare that was lost in its pause may be here already.
  for (const std::uint32_t rank : ranks)
    if (std::find(moved_.begin(), moved_.end(), rank) == moved_.end()) moved_.push_back(rank);
  moved_due_ = std::max(moved_due_, steady_now() + pause);
  replace_timer_.expires_at(moved_due_);
  replace_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) start_moved_ranks();
  });
  return true;
}

// Sends the spares their part of the plan: only the ranks that have moved, since others of the node
// may have exited with 0.
void HostLosses::start_moved_ranks() {
  const std::vector<std::uint32_t> moved = std::exchange(moved_, {});
  if (job_.phase.state() != JobState::kRunning) return;
  for (std::size_t index = 0; index < job_.plan.hosts.size(); ++index) {
    const std::size_t host = job_.plan.hosts[index].host_index;
    if (std::exchange(job_.hosts[host].was_started, true)) continue;
    Result<HostPlan> plan = planner_.host_plan(index);
    if (!plan.ok()) return job_.reject_input(plan.error());
    const auto specs = std::exchange(*plan->mutable_workers(), {});
    for (WorkerSpec spec : specs) {
      if (std::find(moved.begin(), moved.end(), spec.rank()) == moved.end()) continue;
      spec.set_rejoins(static_cast<std::uint32_t>(job_.workers[spec.rank()].rejoins));
      spec.set_standard_input(false);
      *plan->add_workers() = std::move(spec);
    }
    job_.hosts.send(host, bring_up_.start_command(std::move(plan).value()));
  }
}

bool HostLosses::continues_without_host(std::size_t index, const std::vector<std::uint32_t>& ranks,
                                        const LauncherEnd& end, const RemoteText& message) {
  // The store is on the first host.
  if (job_.plan.hosts.empty() || job_.plan.hosts.front().host_index == index) return false;
  if (job_.phase.state() != JobState::kRunning || job_.has_reason()) return false;
  if (!ranks_.losses().continues_without(index, ranks, end)) return false;
  job_.unclean.push_back(end.diagnostic.what + ": " + message.line() +
                         "; its workers may still run");
  job_.hosts[index].session->close();
  return true;
}

void HostLosses::end_job(std::size_t index, LauncherEnd end, const RemoteText& message) {
  // There is another reason already, but the summary should say that this host's workers may run.
  if (job_.has_reason()) {
    job_.unclean.push_back(job_.hosts[index].name() + ": " + message.line() +
                           "; its workers may still run");
    return;
  }
  if (job_.phase.state() != JobState::kDone)
    job_.print(end.diagnostic.what + ": " + message.line());
  if (job_.hosts.may_lose_hosts()) end.diagnostic.cause += "\n" + job_.hosts.too_few_text();
  job_.end_because(end.reason, end.diagnostic);
  // The loss dates from the last sign of life, not from the end of the lease: failures of its peers
  // in between are consequences of it.
  if (end.reason == LauncherReason::kHostLost) job_.launcher_end.at_ns = end.at_ns;
}

bool HostLosses::supervisor_stopped(std::size_t index, const RemoteText& reason) {
  const HostRecord& host = job_.hosts[index];
  growth_.lost(index, milliseconds(0));
  if (host.is_spare) {
    lose_spare(index, HostLoss::kSupervisor, reason);
    return true;
  }
  job_.reports.host_lost(host.name(), HostLoss::kSupervisor, reason,
                         job_.workers.unfinished_on(index));
  Diagnostic diagnostic;
  diagnostic.id = "IVY-R007";
  diagnostic.what = "the supervisor on host " + host.name() + " stopped the job";
  diagnostic.where = host.name();
  diagnostic.cause = reason.lines();
  diagnostic.exit_code = kExitHostLost;
  const LauncherEnd end{LauncherReason::kSupervisorLost, 0, diagnostic,
                        host.session->last_received_ns()};
  if (lose_member(index, end, "host " + host.name() + " left the job: " + reason.line()))
    return true;
  job_.end_because(LauncherReason::kSupervisorLost, std::move(diagnostic));
  job_.phase.apply(JobEvent::kHostLost);
  return false;
}

bool HostLosses::lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause) {
  const JobState state = job_.phase.state();
  if (!job_.hosts.may_lose_hosts() || state == JobState::kKilling || state == JobState::kDone)
    return false;
  HostRecord& host = job_.hosts[index];
  host.excluded =
      ExcludedHost{.name = host.name(), .reason = end.diagnostic.cause, .may_return = true};
  host.lost = true;
  host.opens_store = false;
  if (job_.has_reason() || !job_.hosts.can_do_without(index)) return false;
  host.session->close();
  if (is_before_start(state)) {
    job_.phase.apply_later(JobEvent::kMemberLost);
    return true;
  }
  const bool all_succeeded =
      state == JobState::kConfirming &&
      std::all_of(job_.workers.begin(), job_.workers.end(),
                  [](const WorkerRecord& worker) { return worker.end.status.is_success(); });
  if (all_succeeded) {
    // The work is done, and only the host's report that nothing is left there is missing.
    job_.unclean.push_back(
        cause + ", after its workers had exited; processes that they started may still run");
    job_.phase.check_end_later();
    return true;
  }
  members_.push_back({index, end, cause});
  job_.print(cause);
  // In a later turn: the loss may be found while a command is being sent to all hosts.
  job_.phase.apply_later(JobEvent::kMemberLost);
  job_.phase.check_end_later();
  return true;
}

void HostLosses::leave_out_after_notice(std::size_t index, LauncherEnd end,
                                        const std::string& cause) {
  members_.push_back({index, std::move(end), cause});
  job_.hosts.exclude(index, {.reason = cause});
}

void HostLosses::take_as_reason() {
  if (!job_.has_reason()) job_.launcher_end = members_.front().end;
  members_.erase(members_.begin());
}

void HostLosses::report_lost_members() {
  for (const LostMember& lost : std::exchange(members_, {}))
    if (lost.end.reason != LauncherReason::kPreempted)
      job_.unclean.push_back(lost.cause + "; its workers may still run");
}

milliseconds HostLosses::pause_for(milliseconds usual) const {
  milliseconds pause = usual;
  for (const LostMember& lost : members_)
    pause = std::max(pause, end_of_workers(lost.host, lost.end.reason));
  return pause;
}

// Returns the time from now until the workers of a lost host have certainly been killed.
milliseconds HostLosses::end_of_workers(std::size_t index, LauncherReason loss) const {
  if (loss != LauncherReason::kHostLost) return milliseconds(0);
  const std::int64_t given_up_ns = job_.hosts[index].session->given_up_ns();
  const milliseconds until_stop((given_up_ns - monotonic_ns()) / 1'000'000);
  return until_stop + job_.grace(kGraceAfterFailure) + kLeaseMargin;
}

}  // namespace ivy
