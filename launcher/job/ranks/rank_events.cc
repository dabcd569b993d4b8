// SPDX-License-Identifier: Apache-2.0
// The first section follows a worker: begin(), started(), output(), then exited() or
// start_failed(), both of which call ended(). The second section is everything else that may happen
// to a generation. The third one answers ivyctl and --metrics-file, and implements ExaminedJob for
// the evidence. Class Job calls these functions with the messages of hosts.
#include "launcher/job/ranks/rank_events.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "launcher/hang/flight_analysis.h"
#include "launcher/hang/rank_names.h"
#include "launcher/job/ranks/rank_rows.h"
#include "launcher/options/option_values.h"
#include "launcher/report/folded_ranks.h"
#include "proto/contract/log.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// Limit for the stacks of all ranks, short enough that `ivyctl top` stays a live view.
constexpr std::chrono::milliseconds kStacksTimeout{2'000};
// Ranks rarely finish their work this far apart: the others may wait for a rank that has exited.
constexpr std::chrono::milliseconds kRemainingTimeout{60'000};

std::chrono::milliseconds remaining_timeout(const JobRequest& request) {
  // For tests only.
  const std::string* const shorter = find_variable(request.caller, "IVY_TEST_REMAINING_PATIENCE");
  if (shorter == nullptr) return kRemainingTimeout;
  const Result<std::chrono::milliseconds> parsed = parse_duration(*shorter);
  return parsed.ok() ? std::min(kRemainingTimeout, *parsed) : kRemainingTimeout;
}

bool has_succeeded(const WorkerRecord& worker) { return worker.ended && !worker.has_failed(); }

// Returns "rank 0 exited with code 0"; empty if no rank has.
std::string succeeded_ranks(const JobWorkers& workers) {
  std::vector<int> ranks;
  for (const WorkerRecord& worker : workers)
    if (has_succeeded(worker)) ranks.push_back(worker.end.rank);
  return ranks.empty() ? "" : named_ranks(ranks) + " exited with code 0";
}

// Limit of the device faults that are kept for the report of an attempt.
constexpr std::size_t kMaxDeviceNotes = 256;

// Returns the first rank that was given the device at this PCI address.
std::optional<int> rank_with(const JobPlan& plan, const HostRecord& host, const std::string& bdf) {
  if (bdf.empty() || !host.is_planned() || !host.facts) return std::nullopt;
  const PlannedHost& planned = plan.hosts[static_cast<std::size_t>(host.plan_index)];
  for (const PlannedWorker& worker : planned.workers) {
    for (const int device : worker.devices) {
      const int index = planned.devices[static_cast<std::size_t>(device)];
      if (index < host.facts->devices_size() && host.facts->devices(index).bdf() == bdf)
        return worker.rank;
    }
  }
  return std::nullopt;
}

// True if the job may not use the GPU at this PCI address, because masks or the scheduler hide it.
bool is_foreign(const HostRecord& host, const std::string& bdf) {
  if (bdf.empty() || !host.facts || host.facts->devices_size() == 0) return false;
  const auto& devices = host.facts->devices();
  return std::none_of(devices.begin(), devices.end(),
                      [&](const Accelerator& device) { return device.bdf() == bdf; });
}

}  // namespace

RankEvents::RankEvents(JobContext& job, Preemption& preemption)
    : job_(job),
      preemption_(preemption),
      relay_(job.loop, job.hosts),
      evidence_(job.loop, *this),
      mpi_(job),
      losses_(job),
      remaining_timer_(job.loop) {}

void RankEvents::begin() {
  remaining_timer_.cancel();
  has_printed_remaining_ = false;
  exit_timeout_runs_ = false;
  job_.device_notes.clear();
  mpi_.begin();
  losses_.begin();
  evidence_.watch(job_.options.stall_timeout);
  job_.workers.begin(job_.plan);
  relay_.begin(job_.generation, job_.workers.hosts_by_rank());
  job_.reports.metrics().begin([this](std::function<void(const std::string&)> done) {
    describe([this, done = std::move(done)](const ctl::RanksDescription& ranks) {
      if (!job_.is_muted) done(metrics_text(job_.metrics_inputs(), ranks));
    });
  });
}

WorkerRecord* RankEvents::worker(std::size_t index, std::uint32_t generation, std::uint32_t rank) {
  if (generation != job_.generation) return nullptr;
  WorkerRecord* const found = job_.workers.of(index, rank);
  if (found == nullptr)
    log::debug(job_.hosts[index].name() + " reported rank " + std::to_string(rank) +
               ", which it does not run");
  return found;
}

bool RankEvents::started(std::size_t index, const Started& started) {
  WorkerRecord* const found = worker(index, started.generation(), started.rank());
  if (found == nullptr) return false;
  job_.workers.started(*found, started.pid());
  if (started.rejoins() > 0) {
    found->started_at_ns = monotonic_ns();
    relay_.on_restarted(index, started);
  }
  return job_.workers.all_started();
}

void RankEvents::output(std::size_t index, const session::OutputChunk& chunk) {
  WorkerRecord* const found = worker(index, chunk.generation, chunk.rank);
  if (found != nullptr) {
    evidence_.output_printed();
    if (!chunk.bytes.empty()) found->last_output_ns = monotonic_ns();
  }
  if (found == nullptr || job_.screen.is_discarding()) {
    job_.hosts[index].session->grant(chunk.bytes.size());
  } else {
    if (!chunk.bytes.empty()) job_.reports.output(static_cast<int>(chunk.rank), chunk.stream);
    // With --on-failure replace, the end of a process's stream need not be the end of the rank's
    // output.
    const bool is_last = chunk.end && job_.options.on_failure != OnFailure::kReplace;
    job_.screen.output().worker_bytes(static_cast<int>(chunk.rank), chunk.stream, chunk.bytes,
                                      is_last);
  }
  if (found == nullptr || !chunk.end) return;
  --found->open_streams;
  job_.phase.check_end();
}

void RankEvents::exited(std::size_t index, const Exited& exited) {
  WorkerRecord* const found = worker(index, exited.generation(), exited.rank());
  if (found == nullptr || found->ended) return;
  job_.workers.exited(*found, exited, job_.hosts[index].session->relate(exited.at_ns()));
  // Only the first generation gets the input.
  if (job_.options.input.gives(found->end.rank))
    job_.input_taken = std::max<std::uint64_t>(job_.input_taken.value_or(0), exited.input_taken());
  relay_.on_exited(index, exited);
  losses_.notify_store(*found);
  ended(*found);
  mpi_.check_absent();
}

void RankEvents::start_failed(std::size_t index, const StartFailed& failed) {
  WorkerRecord* const found = worker(index, failed.generation(), failed.rank());
  if (found == nullptr || found->ended) return;
  job_.workers.start_failed(*found, failed, job_.hosts[index].session->relate(failed.at_ns()));
  // Only this rank was to be restarted, but a stop came first.
  found->end.after_stop |= found->rejoins > 0 && failed.error() == ECANCELED;
  relay_.on_start_failed(index, failed.rank());
  ended(*found);
}

void RankEvents::ended(WorkerRecord& worker) {
  log::debug("rank " + std::to_string(worker.end.rank) +
             " ended: " + ivy::describe(worker.end.status));
  job_.reports.exited(worker.end);
  const bool is_no_failure = preemption_.explains(worker) || worker.end.after_stop;
  if (worker.has_failed() && !is_no_failure) job_.screen.output().show_failed(worker.end.rank);
  if (worker.has_failed() && is_no_failure) losses_.abandon(worker);
  if (worker.has_failed() && !is_no_failure &&
      !losses_.continues_after(worker, preemption_.has_notice()))
    job_.phase.apply(JobEvent::kWorkerFailed);
  if (job_.workers.running() == 0) job_.phase.apply(JobEvent::kAllEnded);
  watch_remaining();
  job_.phase.check_end();
}

// ---- What else may happen to a generation -------------------------------------------------------

void RankEvents::lost(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss) {
  relay_.ranks_lost(
      index, ranks,
      loss == HostLoss::kHost ? comm_status::RankState::kHostLost : comm_status::RankState::kDied);
}

void RankEvents::jax_service_lost(std::size_t index, const JaxServiceLost& lost) {
  if (job_.is_muted) return;
  job_.end_because(LauncherReason::kStoreLost,
                   Diagnostic{.id = "IVY-R016",
                              .what = "JAX's coordination service exited (--app jax-service)",
                              .where = job_.hosts[index].name(),
                              .cause = RemoteText(lost.why()).line(),
                              .fix = "see its requirements in docs/frameworks.md",
                              .exit_code = kExitRejected});
  job_.phase.apply(JobEvent::kHostLost);
}

void RankEvents::device_faults(std::size_t index, const DeviceFaults& faults) {
  if (faults.generation() != job_.generation) return;
  const HostRecord& host = job_.hosts[index];
  for (const DeviceFault& one : faults.findings()) {
    if (job_.device_notes.size() >= kMaxDeviceNotes) return;
    if (is_foreign(host, one.bdf())) continue;
    DeviceNote note;
    note.host = host.name();
    note.device = RemoteText(one.device()).line();
    note.text = RemoteText(one.text()).line();
    note.xid = one.xid();
    note.rank = rank_with(job_.plan, host, one.bdf());
    if (one.at_ns() != 0) note.at_ns = host.session->relate(one.at_ns()).at_ns;
    job_.device_notes.push_back(std::move(note));
  }
}

void RankEvents::stalled(std::size_t index, const Stalled& stalled) {
  if (worker(index, stalled.generation(), stalled.rank()) == nullptr) return;
  report_stall("an operation of rank " + std::to_string(stalled.rank()) +
                   " takes longer than --stall-timeout",
               "");
}

void RankEvents::report_stall(const std::string& what, const std::string& more) {
  const auto print = [this, what, more](const std::string& operations,
                                        const std::vector<std::string>&) {
    if (job_.is_muted) return;
    std::string text = "warning: " + what + ". What each rank waits for:";
    if (!operations.empty()) text += "\n" + indented(operations);
    if (!more.empty()) text += "\n" + indented(more);
    job_.print(text);
    evidence_.stalled();
  };
  relay_.query_operations({}, print);
}

// Call when a rank has exited: some ranks may wait for one that has exited with 0.
void RankEvents::watch_remaining() {
  remaining_timer_.cancel();
  if (job_.phase.state() != JobState::kRunning ||
      std::none_of(job_.workers.begin(), job_.workers.end(), has_succeeded))
    return;
  begin_exit_timeout();
  if (has_printed_remaining_) return;
  remaining_timer_.expires_after(remaining_timeout(job_.request));
  remaining_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) print_remaining();
  });
}

// --exit-timeout: from the first exit with 0 on, a stall of the remaining ranks ends the attempt.
void RankEvents::begin_exit_timeout() {
  const std::chrono::seconds limit = job_.options.exit_timeout;
  if (limit.count() == 0 || std::exchange(exit_timeout_runs_, true)) return;
  const std::chrono::seconds other = job_.options.stall_timeout;
  const bool other_stops = job_.options.on_stall == OnStall::kStop && other.count() > 0;
  evidence_.watch(other_stops ? std::min(limit, other) : limit);
}

// Reports ranks that run on after others have exited with 0, and for whom they wait. No user has
// requested this, so ranks do not get the signal that reads their stacks, which would interrupt
// their sleep(). Status pages, torch's flight records and NCCL's positions can be read without the
// ranks' help.
void RankEvents::print_remaining() {
  if (job_.phase.state() != JobState::kRunning || job_.workers.running() == 0) return;
  has_printed_remaining_ = true;
  std::set<std::uint32_t> exited;
  for (const WorkerRecord& worker : job_.workers)
    if (has_succeeded(worker)) exited.insert(static_cast<std::uint32_t>(worker.end.rank));
  relay_.query_operations(exited, [this, exited](const std::string& operations,
                                                 const std::vector<std::string>& own_waits) {
    std::vector<std::string> waits;
    for (const std::string& wait : own_waits) waits.push_back(wait + " (ivycomm)");
    JobEvidence::Question question;
    question.records_only = true;
    question.timeout = kStacksTimeout;
    evidence_.query(question, [this, exited, operations, waits](const JobEvidence::Answer& answer) {
      std::vector<std::string> all = waits;
      for (const std::string& wait : waits_for_exited(answer.flights, exited))
        all.push_back(wait + " (torch)");
      print_remaining_ranks(all, operations, answer.places);
    });
  });
}

// waits: of ranks for ranks that have exited. operations, places: what each rank waits for, in
// ivycomm and in torch or NCCL.
void RankEvents::print_remaining_ranks(const std::vector<std::string>& waits,
                                       const std::string& operations,
                                       const std::vector<std::string>& places) {
  const std::string done = succeeded_ranks(job_.workers);
  if (job_.phase.state() != JobState::kRunning || job_.is_muted || done.empty()) return;
  std::vector<int> ranks;
  for (const WorkerRecord& worker : job_.workers)
    if (!worker.ended) ranks.push_back(worker.end.rank);
  if (ranks.empty()) return;
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(remaining_timeout(job_.request)).count();
  std::string text = "note: " + done + ", " + named_ranks(ranks) + " still run" +
                     (ranks.size() == 1 ? "s" : "") + ", and no rank has exited for " +
                     std::to_string(seconds) + " s" +
                     (waits.empty() ? "" : ": " + joined(waits, ", ")) + ".";
  const std::string places_text = joined(places, "\n");
  const std::string both =
      operations + (operations.empty() || places.empty() ? "" : "\n") + places_text;
  if (!both.empty())
    text += " What each rank waits for:\n" + indented(both);
  else
    text += " `ivyctl stack` shows where each is";
  if (job_.options.on_stall != OnStall::kStop && !exit_timeout_runs_)
    text += "\n  --exit-timeout TIME stops a job whose last ranks make no progress";
  job_.screen.note(text);
}

// ---- What the ranks do: ivyctl top, --metrics-file, stalls --------------------------------------

void RankEvents::describe(Described done, bool with_stacks) {
  std::vector<std::size_t> hosts;
  for (const PlannedHost& planned : job_.plan.hosts) hosts.push_back(planned.host_index);
  relay_.query_usage(hosts, [this, with_stacks,
                             done = std::move(done)](const std::vector<HostOperations>& answers) {
    ctl::RanksDescription ranks;
    add_rank_rows(job_.workers, answers, monotonic_ns(), ranks);
    if (!with_stacks) return done(ranks);
    JobEvidence::Question question;
    question.light = true;
    question.flight_records = false;
    question.timeout = kStacksTimeout;
    evidence_.query(question, [done, ranks](const JobEvidence::Answer& answer) {
      ctl::RanksDescription placed = ranks;
      for (const HostStacks& host : answer.hosts) add_places(host.evidence, placed);
      done(placed);
    });
  });
}

bool RankEvents::send(std::size_t host, const Command& command) {
  return job_.hosts.send(host, command);
}

std::vector<ExaminedJob::HostRanks> RankEvents::ranks_by_host() {
  std::vector<HostRanks> all;
  for (const PlannedHost& planned : job_.plan.hosts) {
    all.push_back({planned.host_index, planned.name, {}});
    for (const PlannedWorker& worker : planned.workers)
      all.back().ranks.push_back(static_cast<std::uint32_t>(worker.rank));
  }
  return all;
}

bool RankEvents::is_running() { return job_.phase.state() == JobState::kRunning && !job_.is_muted; }

void RankEvents::print(const std::string& text) {
  job_.faults.named({.kind = NamedFailure::Kind::kStall, .text = text}, monotonic_ns());
  if (!job_.is_muted) job_.screen.print(text);
}

WatchdogAbort RankEvents::watchdog_abort() {
  WatchdogAbort answer = WatchdogAbort::kNo;
  for (const WorkerRecord& worker : job_.workers) {
    if (!worker.has_failed()) continue;
    WorkerEnd end = worker.end;
    job_.screen.attach_output_tail(end);
    if (was_aborted_by_watchdog(end)) return WatchdogAbort::kYes;
    if (was_abort(end.status) && worker.open_streams > 0) answer = WatchdogAbort::kNotKnownYet;
  }
  return answer;
}

// --on-stall stop, --exit-timeout: ends this attempt, as a failure does.
void RankEvents::stall_continues() {
  if (job_.options.on_stall != OnStall::kStop && !exit_timeout_runs_) return;
  const std::string flag = exit_timeout_runs_ ? "--exit-timeout" : "--on-stall stop";
  LauncherEnd end;
  end.reason = LauncherReason::kStalled;
  end.at_ns = monotonic_ns();
  end.diagnostic = {.id = "IVY-R021",
                    .what = "the job was stopped because its ranks made no progress (" + flag + ")",
                    .cause = evidence_.finding().empty() || exit_timeout_runs_
                                 ? succeeded_ranks(job_.workers)
                                 : evidence_.finding(),
                    .fix = "see the stall report above, and docs/hangs.md",
                    .exit_code = kExitStalled};
  job_.print("no progress: " + job_.stopping_text() + " (" + flag + ")");
  job_.workers.attempt_ends(std::move(end));
  if (job_.max_restarts == 0) job_.take_attempt_end_as_reason();
  job_.phase.apply(JobEvent::kStopRequired);
}

}  // namespace ivy
