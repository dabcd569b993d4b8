// SPDX-License-Identifier: Apache-2.0
// The first section receives notices. The second one acts while the ranks run: tick() takes the
// board's steps. settle() follows the attempt.
#include "launcher/job/host_notices.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/options/option_values.h"
#include "proto/contract/host_ranges.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// How often the board is asked while it has notices. Its times are seconds.
constexpr milliseconds kBoardTick{500};
// The first query of drained nodes; the start of a job does not wait for it.
constexpr milliseconds kFirstDrainQuery{5'000};

std::int64_t nanoseconds_in(milliseconds time) { return std::chrono::nanoseconds(time).count(); }

std::string seconds_until(std::int64_t at_ns) {
  return std::to_string(std::max<std::int64_t>(at_ns - monotonic_ns(), 0) / 1'000'000'000) + " s";
}

}  // namespace

HostNotices::HostNotices(JobContext& job, Preemption& preemption, HostLosses& losses)
    : job_(job),
      preemption_(preemption),
      losses_(losses),
      board_(nanoseconds_in(job.options.notice_time), job.options.preempt_signal.has_value()),
      drain_timer_(job.loop),
      timer_(job.loop) {}

// ---- Notices arrive -----------------------------------------------------------------------------

void HostNotices::start() {
  const WatchNotices watch = job_.options.watch_notices;
  if (!job_.options.allocation || job_.options.dry_run ||
      (watch != WatchNotices::kAuto && watch != WatchNotices::kSlurm))
    return;
  // For tests: may only make the period shorter.
  milliseconds period = DrainWatch::kPeriod;
  if (const std::string* text = find_variable(job_.request.caller, "IVY_TEST_DRAIN_PERIOD")) {
    const Result<milliseconds> shorter = parse_duration(*text);
    if (shorter.ok()) period = std::min(period, *shorter);
  }
  drain_timer_.expires_after(std::min(kFirstDrainQuery, period));
  drain_timer_.async_wait([this, period, watch](const boost::system::error_code& error) {
    if (error || is_over_) return;
    // A job that can neither leave a host nor save its state gains nothing from a notice.
    const std::vector<NoticeHost> all = hosts();
    const bool can_leave =
        std::any_of(all.begin(), all.end(), [](const NoticeHost& host) { return host.can_leave; });
    if (watch == WatchNotices::kAuto && !can_leave && !job_.options.preempt_signal) return;
    DrainEvents& events = *this;
    drains_.emplace(job_.loop, job_.options.allocation->nodelist, events);
    drains_->start(period);
  });
}

void HostNotices::stop() {
  is_over_ = true;
  drain_timer_.cancel();
  timer_.cancel();
  if (drains_) drains_->stop();
}

void HostNotices::take(std::size_t index, const HostNotice& notice) {
  std::string source = RemoteText(notice.source()).line();
  std::string reason = RemoteText(notice.reason()).line();
  if (notice.withdrawn()) return withdraw(index, source, reason);
  Notice taken{index, std::move(source), std::move(reason)};
  if (notice.deadline_ns() != 0)
    taken.deadline_ns = job_.hosts[index].session->relate(notice.deadline_ns()).at_ns;
  add(std::move(taken));
}

std::optional<std::size_t> HostNotices::host_named(const std::string& node) const {
  for (std::size_t index = 0; index < job_.hosts.size(); ++index)
    if (job_.hosts[index].host->name == node) return index;
  return std::nullopt;
}

void HostNotices::node_drains(const std::string& node, const std::string& reason) {
  if (const std::optional<std::size_t> index = host_named(node))
    add({*index, "Slurm", "drain" + (reason.empty() ? "" : ": " + RemoteText(reason).line())});
}

void HostNotices::node_resumes(const std::string& node, const std::string& reason) {
  if (const std::optional<std::size_t> index = host_named(node))
    withdraw(*index, "Slurm", "drain" + (reason.empty() ? "" : ": " + RemoteText(reason).line()));
}

void HostNotices::add(Notice notice) {
  const HostRecord& host = job_.hosts[notice.host];
  const JobState state = job_.phase.state();
  if (is_over_ || state == JobState::kDone || host.excluded || host.lost) return;
  notice.at_ns = monotonic_ns();
  if (!board_.add(notice)) return;
  job_.faults.named({.kind = NamedFailure::Kind::kNotice, .host = host.name()}, notice.at_ns);
  job_.print("notice: " + notice_text(notice, host.name(), notice.at_ns));
  job_.reports.notice(host.name(), notice.source, notice.reason, notice.deadline_ns,
                      /*withdrawn=*/false);
  const bool has_plan = !is_before_start(state) && state != JobState::kRestarting;
  if (!has_plan || !host.is_planned()) return leave_now(notice);
  tick();
}

void HostNotices::withdraw(std::size_t index, const std::string& source,
                           const std::string& reason) {
  if (is_over_ || !board_.withdraw(index, source, reason)) return;
  const std::string& name = job_.hosts[index].name();
  job_.print("notice withdrawn: " + name + " will not be stopped (" + source +
             (reason.empty() ? "" : ": " + reason) + ")");
  job_.reports.notice(name, source, reason, std::nullopt, /*withdrawn=*/true);
  if (board_.empty()) preemption_.withdraw();
}

// No rank of the present attempt runs on this host.
void HostNotices::leave_now(const Notice& notice) {
  const std::size_t index = notice.host;
  const JobState state = job_.phase.state();
  const bool is_planned = job_.hosts[index].is_planned() || is_before_start(state);
  if (job_.hosts.can_do_without(index)) {
    board_.forget(index);
    job_.print("continuing without " + job_.hosts[index].name());
    job_.hosts.exclude(index, {.reason = name_of(notice)});
    // In a later turn: the notice may be found while a command is being sent to all hosts.
    if (is_planned) job_.phase.apply_later(JobEvent::kMemberLost);
    return;
  }
  if (!is_planned || !notice.deadline_ns) return schedule();
  end_job(notice);
  job_.phase.apply_later(JobEvent::kStopRequired);
}

// ---- While the ranks run ------------------------------------------------------------------------

std::vector<NoticeHost> HostNotices::hosts() const {
  std::vector<NoticeHost> all;
  for (std::size_t index = 0; index < job_.hosts.size(); ++index)
    all.push_back({job_.hosts[index].is_planned(), job_.hosts.can_do_without(index)});
  return all;
}

bool HostNotices::can_continue(const std::vector<NoticeHost>& hosts) const {
  const std::vector<Notice> binding = board_.binding(hosts);
  return !binding.empty() && !preemption_.ends_with_allocation() &&
         std::all_of(binding.begin(), binding.end(),
                     [&hosts](const Notice& notice) { return hosts[notice.host].can_leave; });
}

void HostNotices::schedule() {
  if (is_over_ || board_.empty() || std::exchange(is_scheduled_, true)) return;
  timer_.expires_after(kBoardTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    is_scheduled_ = false;
    if (!error) tick();
  });
}

void HostNotices::tick() {
  schedule();
  if (job_.phase.state() != JobState::kRunning || job_.is_muted) return;
  const std::vector<NoticeHost> all = hosts();
  if (preemption_.has_notice()) {
    preemption_.set_group_continues(can_continue(all));
    if (job_.workers.running() < running_at_signal_) board_.rank_exited(monotonic_ns());
  }
  switch (board_.due(all, monotonic_ns())) {
    case NoticeStep::kNothing:
      return;
    case NoticeStep::kSignal:
      return warn_ranks(all);
    case NoticeStep::kStop:
      return stop_attempt(all);
  }
}

void HostNotices::warn_ranks(const std::vector<NoticeHost>& all) {
  board_.signalled(monotonic_ns());
  running_at_signal_ = job_.workers.running();
  const std::vector<Notice> binding = board_.binding(all);
  const bool continues = can_continue(all);
  std::string what;
  std::vector<std::string> names;
  for (const Notice& notice : binding) names.push_back(job_.hosts[notice.host].name());
  const std::optional<std::int64_t> stop_at = board_.stop_at_ns(all);
  if (!stop_at)
    what = "the job cannot do without the host, and runs on";
  else if (continues)
    what = "the attempt is stopped in " + seconds_until(*stop_at) +
           ", and the next one runs without " + fold_host_names(names);
  else
    what = "the job is stopped in " + seconds_until(*stop_at) + " (exit code " +
           std::to_string(kExitPreempted) + ")";
  preemption_.warn_ranks(binding.empty() ? "a host" : name_of(binding.front()), what);
  preemption_.set_group_continues(continues);
}

void HostNotices::stop_attempt(const std::vector<NoticeHost>& all) {
  job_.print("the time of the notice is up: " + job_.stopping_text());
  if (can_continue(all)) return job_.phase.apply(JobEvent::kMemberLost);
  const std::vector<Notice> binding = board_.binding(all);
  const auto needed = std::find_if(binding.begin(), binding.end(), [&all](const Notice& notice) {
    return !all[notice.host].can_leave;
  });
  // Without one the whole allocation ends, but this host ends earlier.
  end_job(needed != binding.end() ? *needed : binding.front());
  job_.phase.apply(JobEvent::kStopRequired);
}

void HostNotices::end_job(const Notice& notice) { preemption_.end_job(name_of(notice)); }

std::string HostNotices::name_of(const Notice& notice) const {
  return job_.hosts[notice.host].name() + " will be stopped (" + notice.source +
         (notice.reason.empty() ? "" : ": " + notice.reason) + ")";
}

// ---- After the attempt --------------------------------------------------------------------------

void HostNotices::settle() {
  const bool was_wave = preemption_.has_notice() && !preemption_.ends_with_allocation();
  for (const Notice& notice : board_.binding(hosts())) {
    // Without a wave the attempt has ended for another reason, which decides whether one follows.
    if (job_.has_reason() || (!was_wave && job_.max_restarts == 0)) break;
    const std::size_t index = notice.host;
    if (job_.hosts[index].excluded || job_.hosts[index].lost) {
      board_.forget(index);
      continue;
    }
    if (!job_.hosts.can_do_without(index)) {
      if (was_wave) end_job(notice);
      continue;
    }
    board_.forget(index);
    Command finish;
    finish.mutable_finish();
    job_.hosts.send(index, finish);
    if (was_wave)
      losses_.leave_out_after_notice(index, preemption_.end_of(name_of(notice)), name_of(notice));
    else
      job_.hosts.exclude(index, {.reason = name_of(notice)});
  }
  board_.end_wave();
  preemption_.end_wave();
}

}  // namespace ivy
