// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/takeover.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>

#include "launcher/job/control/job_record.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// Hosts that have not answered are named after the first time, then at the second interval.
constexpr std::chrono::seconds kFirstNamed{4};
constexpr std::chrono::seconds kNamedAgain{30};
constexpr std::size_t kMaxSteps = 4;  // Limit of the hosts that are named with their steps.
// Limit of the events that wait for the last host's answer.
constexpr std::size_t kMaxDeferredBytes = 256u << 20;
// Counted for each event in addition to its bytes. It is more than an event takes here, and so
// limits their number.
constexpr std::size_t kDeferredOverhead = 1024;

}  // namespace

Takeover::Takeover(JobContext& job, StoreController& store, RankEvents& ranks, HostLosses& losses,
                   CtlService& service, JobRecordWriter& record, Restarts& restarts,
                   TakeoverActions& actions)
    : job_(job),
      store_(store),
      ranks_(ranks),
      losses_(losses),
      service_(service),
      record_(record),
      restarts_(restarts),
      actions_(actions),
      timeout_timer_(job.loop),
      limit_timer_(job.loop) {}

void Takeover::begin() {
  restore_plan();
  const Result<void> listening = service_.listen();
  if (!listening.ok() && listening.error().code == Code::kAlreadyExists) {
    // Only one launcher gets the job's directory, and with it the job.
    job_.print("note: another launcher has just taken over job " +
               job_.request.identity.job_id.substr(0, 12) + "; this one exits");
    return exit_launcher();
  }
  if (!listening.ok()) return give_up(listening.error().message);
  job_.screen.open_generation(job_.generation, job_.plan, job_.max_attempts(),
                              [this](const std::optional<Diagnostic>& rejection) {
                                if (job_.is_muted) return;
                                if (rejection) return give_up(rejection->what);
                                dial();
                              });
}

void Takeover::restore_plan() {
  const ctl::JobRecord& record = *job_.request.record;
  job_.phase.take_over();
  job_.generation = record.generation();
  job_.opened_unix_ms = record.opened_unix_ms();
  job_.started_at_ns = monotonic_ns() - time_since_start(record).count() * 1'000'000;
  // The start of this attempt is unknown; --timeout counts from the start of the job.
  job_.job_started_at_ns = job_.started_at_ns;
  restarts_.take_over(job_.generation);
  job_.plan = recorded_plan(record);
  job_.hosts.take_plan(job_.plan);
  // The previous launcher has checked the hosts' connections to the first one.
  for (HostRecord& host : job_.hosts) {
    host.checked = true;
    host.was_started = host.is_planned();
  }
  ranks_.begin();
  store_.take_over();
}

void Takeover::dial() {
  // Written before any host gets the new number, because the next launcher must use a higher one.
  const Result<void> written = record_.save();
  if (!written.ok()) return give_up(written.error().message);
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) awaited_.insert(index);
  announced_.assign(job_.hosts.size(), 0);
  actions_.dial_hosts();
  timeout_timer_.expires_after(kFirstNamed);
  print_awaited();
  limit_timer_.expires_after(job_.options.start_timeout);
  limit_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && is_under_way())
      give_up(awaited_text() + " did not respond within --start-timeout");
  });
}

std::string Takeover::awaited_text() const {
  // With many hosts, the names must suffice.
  const bool has_steps = awaited_.size() <= kMaxSteps;
  std::vector<std::string> names;
  for (const std::size_t index : awaited_) {
    const HostRecord& host = job_.hosts[index];
    names.push_back(host.name());
    if (has_steps && !host.doing.empty())
      names.back() += " (" + host.doing.whole_text().line() + ")";
  }
  return has_steps ? joined(names, ", ") : fold_host_names(names);
}

void Takeover::print_awaited() {
  timeout_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !is_under_way()) return;
    job_.print("taking the job over: waiting for " + awaited_text());
    timeout_timer_.expires_after(kNamedAgain);
    print_awaited();
  });
}

void Takeover::host_taken_over(std::size_t index, const TakenOver& taken) {
  restarts_.learn_max_restarts(static_cast<int>(taken.max_restarts()));
  const HostRecord& host = job_.hosts[index];
  if (host.is_planned() && taken.generation() + 1 == job_.generation) missed_start_.insert(index);
  std::uint64_t lacking = 0;
  for (const StreamPosition& position : taken.streams()) {
    WorkerRecord* const worker =
        taken.generation() == job_.generation ? job_.workers.of(index, position.rank()) : nullptr;
    if (worker == nullptr) continue;
    if (job_.options.log_to != LogLocation::kNode)
      lacking += job_.screen.output().continue_at(
          static_cast<int>(position.rank()), static_cast<int>(position.stream()), position.bytes());
    if (position.ended()) --worker->open_streams;
  }
  if (lacking > 0)
    job_.print(
        "warning: " + host.name() + ": " + std::to_string(lacking) +
        " bytes of output are missing in the files: the previous launcher had received them but "
        "had not written them");
  announced_[index] = taken.events();
  if (taken.events() == 0) host_answered(index);
}

void Takeover::defer(std::size_t index, const Event& event) {
  std::string bytes = event.SerializeAsString();
  // More than any job sends: this host cannot be taken over, so the job is left as it is.
  deferred_bytes_ += bytes.size() + kDeferredOverhead;
  if (deferred_bytes_ > kMaxDeferredBytes)
    return give_up("host " + job_.hosts[index].name() + " sent more than ivyrun can hold (" +
                   std::to_string(kMaxDeferredBytes >> 20) + " MiB)");
  deferred_.emplace_back(index, std::move(bytes));
  if (announced_[index] > 0 && --announced_[index] == 0) host_answered(index);
}

void Takeover::host_failed(std::size_t index, const LinkDown& down) {
  if (down.failure != LinkFailure::kNoSuchJob)
    return give_up("host " + job_.hosts[index].name() + ": " + down.message);
  job_.hosts[index].failure = down;
  host_lost(index, HostLoss::kSupervisor, down.message);
}

void Takeover::host_lost(std::size_t index, HostLoss loss, const RemoteText& why) {
  lost_.emplace(index, std::pair(loss, why));
  host_answered(index);
}

void Takeover::host_answered(std::size_t index) {
  if (awaited_.erase(index) == 0 || !awaited_.empty()) return;
  timeout_timer_.cancel();
  limit_timer_.cancel();
  job_.print("launcher pid " + std::to_string(getpid()) + " took over the job");
  for (const auto& [from, bytes] : std::exchange(deferred_, {})) {
    Event event;
    if (event.ParseFromString(bytes)) actions_.handle(from, event);
  }
  for (const auto& [lost_host, lost] : std::exchange(lost_, {}))
    losses_.lost(lost_host, lost.first, lost.second);
  for (const std::size_t late : std::exchange(missed_start_, {}))
    job_.hosts.send(late, restarts_.start_again());
  actions_.taken_over();
}

void Takeover::give_up(const RemoteText& why) {
  job_.print("error: job " + job_.request.identity.job_id.substr(0, 12) +
             " cannot be taken over: " + why.line() +
             "\n  it keeps running until its hosts stop it when the lease expires");
  exit_launcher();
}

void Takeover::exit_launcher() {
  Output& output = job_.screen.output();
  if (std::exchange(job_.is_muted, true)) return output.limit_finish(JobScreen::kInterruptedDrain);
  timeout_timer_.cancel();
  limit_timer_.cancel();
  job_.hosts.close_sessions();
  job_.screen.cancel_opening();
  if (service_.socket() != nullptr) service_.socket()->release_directory();
  boost::asio::post(job_.loop, [this, &output] {
    output.finish([this] { job_.actions.exit(kExitHostsNotUp, 0); });
  });
}

}  // namespace ivy
