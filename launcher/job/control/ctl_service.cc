// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/ctl_service.h"

#include <unistd.h>

#include <csignal>
#include <set>
#include <utility>

#include "launcher/job/control/ended_jobs.h"
#include "launcher/job/control/job_record.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Delay of the socket: a shorter job needs none, and a start is not slowed down by it.
constexpr milliseconds kSocketDelay{150};
// A job whose hosts do not come up gets its socket after this time at the latest.
constexpr std::int64_t kSocketLatestNs = 1'000'000'000;
// Bytes of a command line that are shown to users.
constexpr std::size_t kShownCommandBytes = 4096;

// Returns the addresses that the store on another host may see as those of this host's clients.
std::set<std::string> addresses_of(const HostRecord& host) {
  std::set<std::string> addresses;
  if (host.facts)
    for (const Address& address : host.facts->addresses())
      if (!address.loopback()) addresses.insert(address.address());
  if (host.up && !host.up->peer_address.empty()) addresses.insert(host.up->peer_address);
  return addresses;
}

Error no_workers(JobState state) {
  return Error{Code::kFailedPrecondition,
               std::string("no workers run now; the job is ") + name(state)};
}

}  // namespace

CtlService::CtlService(JobContext& job, RankEvents& ranks)
    : job_(job), ranks_(ranks), parent_(getppid()), timer_(job.loop) {}

void CtlService::schedule() {
  if (job_.options.dry_run) return;
  timer_.expires_after(kSocketDelay);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || job_.phase.state() == JobState::kDone) return;
    if (is_before_start(job_.phase.state()) && monotonic_ns() - job_.opened_at_ns < kSocketLatestNs)
      return schedule();
    open();
  });
}

void CtlService::open() {
  if (socket_ || job_.is_muted) return;
  const Result<void> opened = listen();
  if (!opened.ok()) job_.print("note: ivyctl will not find this job: " + opened.error().message);
}

Result<void> CtlService::listen() {
  socket_ = IVY_TRY(JobSocket::open(job_.loop, job_.request.identity.job_id, *this));
  job_.screen.follow(socket_.get());
  return {};
}

ctl::JobDescription CtlService::describe() {
  const Options& options = job_.options;
  ctl::JobDescription job;
  job.set_job_id(job_.request.identity.job_id);
  job.set_pid(getpid());
  job.set_state(name(job_.phase.state()));
  describe_hosts(job_.plan, job);
  for (std::size_t i = 0; i < job_.plan.hosts.size(); ++i) {
    const std::optional<HostFacts>& facts = job_.hosts[job_.plan.hosts[i].host_index].facts;
    if (facts) job.mutable_hosts(static_cast<int>(i))->set_architecture(facts->architecture());
  }
  if (job_.plan.hosts.empty())
    for (const HostRecord& host : job_.hosts) job.add_hosts()->set_name(host.name());
  for (const std::string& spare : job_.hosts.spare_names()) job.add_spares(spare);
  job.set_world_size(static_cast<std::uint32_t>(job_.plan.world_size));
  job.set_running(static_cast<std::uint32_t>(job_.workers.running()));
  job.set_ended(static_cast<std::uint32_t>(job_.workers.size() - job_.workers.running()));
  job.set_since_unix_ms(job_.opened_unix_ms);
  std::size_t left = kShownCommandBytes;
  for (const std::string& word : options.command) {
    if (word.size() > left) break;
    left -= word.size();
    job.add_command(word);
  }
  job.set_working_directory(options.working_directory);
  const std::string logs = job_.screen.head_logs(job_.generation);
  if (!logs.empty() && job_.was_started())
    job.set_log_directory(logs.starts_with('/') ? logs : job_.request.started_in + "/" + logs);
  job.set_generation(job_.generation);
  job.set_max_attempts(static_cast<std::uint32_t>(job_.max_attempts()));
  const RankLosses& losses = ranks_.losses();
  for (const std::string& line : losses.lines()) job.add_losses(line);
  job.set_replaced(static_cast<std::uint32_t>(losses.replaced()));
  job.set_lost(static_cast<std::uint32_t>(losses.lines().size() - losses.replaced()));
  job.set_name(options.name);
  job.set_signals_ranks(true);
  job.set_detached(job_.request.detachment != nullptr);
  job.set_orphan(!job.detached() && getppid() != parent_);
  if (job_.outlives_launcher())
    job.set_lease_ms(static_cast<std::uint32_t>(options.lease->count()));
  return job;
}

Result<ctl::StoreDescription> CtlService::describe_store() {
  const JobPlan& plan = job_.plan;
  if (job_.options.no_store || (plan.store_port == 0 && !plan.hosts.empty()))
    return Error{Code::kFailedPrecondition, "this job has no store",
                 "start it without --no-store: only the store knows which ranks wait for which"};
  if (job_.workers.empty()) return no_workers(job_.phase.state());
  ctl::StoreDescription store;
  store.set_job_id(job_.request.identity.job_id);
  store.set_address(with_port(plan.master_address, plan.store_port));
  store.set_token(job_.request.identity.token);
  store.set_generation(job_.generation);
  store.set_no_python_hook(job_.options.no_python_hook);
  const std::set<std::string> of_store = addresses_of(job_.hosts[plan.hosts.front().host_index]);
  for (const PlannedHost& planned : plan.hosts) {
    ctl::StorePeer& peer = *store.add_hosts();
    peer.set_name(planned.name);
    const std::set<std::string> addresses = addresses_of(job_.hosts[planned.host_index]);
    for (const std::string& address : addresses) peer.add_addresses(address);
    const bool is_first = &planned == &plan.hosts.front();
    if (is_first) peer.add_addresses(plan.master_address);
    // Simulated hosts are one machine.
    peer.set_reaches_by_loopback(is_first || addresses == of_store);
    for (const PlannedWorker& worker : planned.workers) {
      const WorkerRecord& record = job_.workers[static_cast<std::size_t>(worker.rank)];
      ctl::StoreWorker& entry = *peer.add_workers();
      entry.set_rank(static_cast<std::uint32_t>(worker.rank));
      entry.set_pid(record.end.pid);
      entry.set_ended(record.ended);
    }
  }
  return store;
}

Result<void> CtlService::signal(const ctl::SignalJob& signal) {
  if (signal.signal() < 1 || signal.signal() >= NSIG)
    return Error{Code::kInvalidArgument, "unknown signal " + std::to_string(signal.signal())};
  const JobState state = job_.phase.state();
  if (state != JobState::kRunning && state != JobState::kStopping) return no_workers(state);
  for (const PlannedHost& host : job_.plan.hosts) {
    Command command;
    SignalWorkers& order = *command.mutable_signal_workers();
    order.set_signal(signal.signal());
    for (const PlannedWorker& worker : host.workers) {
      const auto rank = static_cast<std::uint32_t>(worker.rank);
      for (const ctl::RankRange& range : signal.ranks())
        if (rank >= range.first() && rank <= range.last()) order.add_ranks(rank);
    }
    if (signal.ranks().empty() || !order.ranks().empty()) job_.hosts.send(host.host_index, command);
  }
  return {};
}

Result<void> CtlService::stop(const ctl::StopJob& stop) {
  const JobState before = job_.phase.state();
  if (before == JobState::kDone) return {};
  if (!job_.hosts.have_sessions())
    return Error{Code::kUnavailable, "this launcher is still taking over the job", "try again"};
  if (stop.has_grace()) job_.requested_grace = milliseconds(stop.grace_ms());
  job_.end_because(LauncherReason::kInterrupted,
                   Diagnostic{.severity = Severity::kNote,
                              .id = "IVY-R003",
                              .what = "stopped by ivyctl",
                              .exit_code = 128 + SIGTERM},
                   SIGTERM);
  if (stop.now()) {
    job_.print("ivyctl: killing the workers");
    while (job_.phase.state() != JobState::kKilling && job_.phase.state() != JobState::kDone)
      job_.phase.apply(JobEvent::kInterrupted);
    return {};
  }
  if (before == JobState::kStopping) {
    // A second stop can only change the grace.
    if (stop.has_grace()) job_.phase.apply(JobEvent::kGraceChanged);
    return {};
  }
  if (before == JobState::kKilling || before == JobState::kConfirming) return {};
  job_.phase.apply(JobEvent::kInterrupted);
  if (job_.phase.state() == JobState::kStopping) job_.print("ivyctl: " + job_.stopping_text());
  return {};
}

void CtlService::describe_operations(Text done) {
  ranks_.relay().query_operations(
      {}, [done = std::move(done)](const std::string& operations, const std::vector<std::string>&) {
        done(operations);
      });
}

void CtlService::describe_stacks(const ctl::DescribeStacks& request, Text done) {
  ranks_.evidence().describe(request, std::move(done));
}

void CtlService::describe_ranks(const ctl::DescribeRanks& request, Ranks done) {
  ranks_.describe(std::move(done), request.places());
}

Awaitable<void> CtlService::end(Sequence& sequence, int exit_code, const std::string& cause) {
  timer_.cancel();
  if (!socket_) co_return;
  job_.screen.follow(nullptr);
  ctl::JobEnd end;
  end.set_exit_code(exit_code);
  end.set_cause(cause);
  const Detachment* const detachment = job_.request.detachment;
  const ctl::JobDescription last = describe();
  // Kept for `ivyctl logs` and `ivyctl why`. The messages of a job in the foreground are on its
  // terminal.
  if ((detachment != nullptr && detachment->has_left()) || !last.log_directory().empty())
    record_end(socket_->directory(), {last.job_id(), exit_code, cause, last.SerializeAsString()});
  const auto send_end = [this, &end](const Arrival<Done>& arrive) {
    socket_->end(end, [arrive] { arrive({}); });
  };
  co_await sequence.wait_posted<Done>(send_end);
}

}  // namespace ivy
