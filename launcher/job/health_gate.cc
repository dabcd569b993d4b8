// SPDX-License-Identifier: Apache-2.0
// pass() is the sequence; the functions that it awaits follow in its order, then those that handle
// the hosts' messages, and the decision.
#include "launcher/job/health_gate.h"

#include <sys/random.h>

#include <algorithm>
#include <map>
#include <utility>

#include "launcher/plan/device_plan.h"
#include "launcher/plan/interpreter.h"
#include "launcher/plan/master_address.h"
#include "proto/contract/host_ranges.h"
#include "proto/os/clock.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The hosts stop their checks at the limit themselves, and need this long to kill them and report.
constexpr milliseconds kReportMargin{5'000};
// How long the checks of an attempt that was given up may take to end.
constexpr milliseconds kEarlierRunLimit{5'000};
constexpr milliseconds kLoadTime{2'000};
constexpr milliseconds kStreamTime{300};
// A host waits this long for a stream, in addition to its duration (agent/node/roles/check_load).
constexpr milliseconds kStreamLimit{5'000};
constexpr milliseconds kGateTick{250};
constexpr milliseconds kFirstProgress{5'000};
constexpr milliseconds kProgressPeriod{30'000};
constexpr std::size_t kKeyBytes = 32;

std::string random_key() {
  std::string key(kKeyBytes, '\0');
  IVY_ASSERT(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

CheckWish wish_of(const Options& options) {
  return {options.checks, options.expect_gpus, options.check_load, options.check_timeout};
}

std::string when_text(std::uint32_t generation) {
  return generation == 0 ? "before the start" : "before attempt " + std::to_string(generation + 1);
}

}  // namespace

HealthGate::HealthGate(JobContext& job)
    : job_(job), wish_(wish_of(job.options)), processes_(job.hosts.size(), Process::kNone) {}

std::string HealthGate::dry_run_line() const {
  if (!job_.options.wants_gate()) return "";
  std::string line;
  for (const std::string& name : check_names(wish_)) line += (line.empty() ? "" : "; ") + name;
  return "checks on each host before the start and each restart, within " +
         std::to_string(wish_.limit.count() / 1000) +
         " s (not run by --dry-run; --doctor runs them): " + line;
}

// ---- The sequence -------------------------------------------------------------------------------

Awaitable<bool> HealthGate::pass(Sequence& steps, std::uint32_t generation) {
  if (!job_.options.wants_gate() || (job_.options.dry_run && !job_.options.doctor)) co_return true;
  runs_.clear();
  co_await end_earlier_runs(steps);
  begun_ = shown_ = steady_now();
  key_ = random_key();
  for (const std::size_t host : hosts_of_attempt()) {
    HostRun& run = runs_.emplace_back();
    run.checked.host = host;
    run.checked.name = job_.hosts[host].name();
  }
  for (HostRun& run : runs_) begin(run, generation);
  co_await run_checks(steps);
  if (wish_.load) co_await run_streams(steps);
  cancel();
  job_.screen.status_line("");
  count_devices();
  co_return decide(generation);
}

std::vector<std::size_t> HealthGate::hosts_of_attempt() const {
  std::vector<std::size_t> hosts;
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    const HostRecord& host = job_.hosts[index];
    // Before the first start there is no plan yet. Later, spares may get the ranks of others.
    const bool takes_part =
        is_before_start(job_.phase.state()) || host.is_planned() || host.is_spare;
    if (takes_part && !host.excluded && !host.lost && host.session && host.session->is_open())
      hosts.push_back(index);
  }
  return hosts;
}

// A process that is still there when the limit expires makes its host fail the gate (begin()).
Awaitable<void> HealthGate::end_earlier_runs(Sequence& steps) {
  cancel();
  const steady_clock::time_point limit = steady_now() + kEarlierRunLimit;
  while (steady_now() < limit &&
         std::any_of(processes_.begin(), processes_.end(),
                     [](Process process) { return process != Process::kNone; })) {
    for (std::size_t host = 0; host < processes_.size(); ++host)
      if (job_.hosts[host].lost || job_.hosts[host].excluded) processes_[host] = Process::kNone;
    co_await await_news(steps, limit);
  }
}

Awaitable<void> HealthGate::run_checks(Sequence& steps) {
  const steady_clock::time_point limit = begun_ + wish_.limit + kReportMargin;
  const auto is_over = [](const HostRun& run) { return run.is_over; };
  for (;;) {
    check_lost_hosts();
    if (std::all_of(runs_.begin(), runs_.end(), is_over)) co_return;
    if (steady_now() >= limit) break;
    show_progress();
    co_await await_news(steps, limit);
  }
  for (HostRun& run : runs_) {
    if (run.is_over) continue;
    run.is_over = run.checked.is_late = true;
  }
}

// In a round each host sends to one host and receives from another. With 1, 2, 4... as the distance
// between them, a few rounds are enough to tell a slow host from one whose partner is slow.
Awaitable<void> HealthGate::run_streams(Sequence& steps) {
  ring_.clear();
  for (std::size_t i = 0; i < runs_.size(); ++i)
    if (runs_[i].port != 0) ring_.push_back(i);
  for (const std::size_t i : ring_) runs_[i].checked.stream_per_s = 0;
  for (distance_ = 1; distance_ < ring_.size(); distance_ *= 2) {
    ++round_;
    for (std::size_t place = 0; place < ring_.size(); ++place) {
      HostRun& run = runs_[ring_[place]];
      const HostRun& to = runs_[ring_[(place + distance_) % ring_.size()]];
      CheckOrder order;
      CheckStream& stream = *order.mutable_stream();
      stream.set_round(round_);
      stream.set_address(to.address);
      stream.set_port(to.port);
      stream.set_duration_ms(static_cast<std::uint32_t>(kStreamTime.count()));
      run.is_streaming = !record(run).lost;
      if (run.is_streaming) send(run.checked.host, order);
    }
    const steady_clock::time_point limit = steady_now() + kStreamTime + kStreamLimit;
    const auto streams = [](const HostRun& run) { return run.is_streaming; };
    while (steady_now() < limit && std::any_of(runs_.begin(), runs_.end(), streams)) {
      co_await await_news(steps, limit);
      check_lost_hosts();
    }
  }
  // A single host has nobody to be compared with.
  if (ring_.size() < 2)
    for (const std::size_t i : ring_) runs_[i].checked.stream_per_s.reset();
}

Awaitable<void> HealthGate::await_news(Sequence& steps, steady_clock::time_point limit) {
  const auto wait = [this](const Arrival<Done>& arrive) { news_ = arrive; };
  const auto left = std::max(steady_clock::duration(0), limit - steady_now());
  co_await steps.wait_at_most<Done>(std::min<steady_clock::duration>(left, kGateTick), wait);
}

void HealthGate::cancel() {
  for (std::size_t host = 0; host < processes_.size(); ++host) send_end(host);
}

// ---- Orders to the hosts ------------------------------------------------------------------------

void HealthGate::begin(HostRun& run, std::uint32_t generation) {
  const std::size_t index = run.checked.host;
  const HostRecord& host = job_.hosts[index];
  if (processes_[index] != Process::kNone) {
    run.is_over = true;
    run.checked.breakdown = "the checks of the attempt before have not ended there";
    return;
  }
  const Options& options = job_.options;
  const Environment& caller = job_.request.caller;
  CheckOrder order;
  CheckBegin& begin = *order.mutable_begin();
  Hello& hello = *begin.mutable_hello();
  hello.set_working_directory(options.working_directory);
  if (host.facts && !host.facts->working_directory().empty())
    hello.set_working_directory(host.facts->working_directory());
  if (const std::string* path = find_variable(caller, "PATH")) hello.set_search_path(*path);
  if (host.environment)
    hello.set_search_path(host.environment->directory + "/bin:" + path_without_environment(caller));
  add_device_request(options, caller, hello);
  hello.set_read_cores(false);
  begin.set_limit_ms(static_cast<std::uint32_t>(wish_.limit.count()));
  for (const std::string& command : wish_.commands) begin.add_commands(command);
  if (host.facts) begin.set_interpreter(host.facts->interpreter());
  const auto set = [&](const char* name, const std::string& value) {
    Variable& variable = *begin.add_environment();
    variable.set_name(name);
    variable.set_value(value);
  };
  set("IVY_JOB_ID", job_.request.identity.job_id);
  set("IVY_HOST_INDEX", std::to_string(index));
  set("IVY_GENERATION", std::to_string(generation));
  begin.set_count_devices(wish_.devices.has_value());
  if (wish_.load) begin.set_load_ms(static_cast<std::uint32_t>(kLoadTime.count()));
  if (wish_.load && runs_.size() > 1) {
    run.address = stream_address(index);
    begin.set_listen_address(run.address);
    begin.set_port_low(options.port_low);
    begin.set_port_high(options.port_high);
    begin.set_key(key_);
  }
  processes_[index] = Process::kRunning;
  send(index, order);
}

// Returns the address at which the other hosts reach this one: that of --iface, or the one by which
// the launcher reaches it, or one that no other host has.
std::string HealthGate::stream_address(std::size_t index) const {
  const HostRecord& host = job_.hosts[index];
  std::map<std::string, int> owners;
  for (const HostRecord& other : job_.hosts)
    if (other.facts)
      for (const Address& address : other.facts->addresses()) ++owners[address.address()];
  std::string own;
  if (host.facts) {
    for (const Address& address : host.facts->addresses()) {
      if (address.loopback()) continue;
      if (!job_.options.interface.empty() && address.interface() == job_.options.interface)
        return address.address();
      if (own.empty() && owners[address.address()] == 1) own = address.address();
    }
  }
  // Behind a translation of addresses, the host does not have the one to which ivyrun connects.
  const auto is_usable = [&](const std::string& address) {
    return !address.empty() && !is_loopback(address) &&
           (!host.facts || owns_address(*host.facts, address));
  };
  if (host.up && is_usable(host.up->peer_address)) return host.up->peer_address;
  // Another host's connection shows by which address it would reach this one.
  if (host.on_this_host)
    for (const HostRecord& other : job_.hosts)
      if (other.up && is_usable(other.up->local_address)) return other.up->local_address;
  return own.empty() ? "127.0.0.1" : own;
}

void HealthGate::send(std::size_t host, const CheckOrder& order) {
  Command command;
  command.mutable_task_input()->set_task(TASK_CHECK);
  command.mutable_task_input()->set_bytes(stage::framed(order.SerializeAsString()));
  job_.hosts.send(host, command);
}

// One end for each process, after which another one may be started there.
void HealthGate::send_end(std::size_t host) {
  if (processes_[host] != Process::kRunning) return;
  processes_[host] = Process::kEnding;
  Command command;
  command.mutable_task_input()->set_task(TASK_CHECK);
  command.mutable_task_input()->set_end(true);
  job_.hosts.send(host, command);
}

// ---- Messages of the hosts ----------------------------------------------------------------------

void HealthGate::take(std::size_t host, const TaskOutput& output) {
  // Output of a process that was told to end has no reader.
  if (HostRun* const run = find(host); run != nullptr && processes_[host] == Process::kRunning) {
    run->replies.feed(output.bytes());
    for (;;) {
      const Result<std::optional<std::string>> message = run->replies.next();
      CheckReply reply;
      if (!message.ok() || (*message && !reply.ParseFromString(**message))) {
        run->is_over = true;
        run->checked.breakdown = "ivy-node check sent an invalid message";
        break;
      }
      if (!*message) break;
      handle(*run, reply);
    }
    if (output.ended() && !run->is_over) {
      run->is_over = true;
      run->checked.breakdown = RemoteText(output.why()).line();
    }
    if (output.ended()) run->is_streaming = false;
  }
  if (output.ended()) {
    send_end(host);
    processes_[host] = Process::kNone;
  }
  if (news_) news_({});
}

void HealthGate::handle(HostRun& run, const CheckReply& reply) {
  CheckedHost& checked = run.checked;
  switch (reply.kind_case()) {
    case CheckReply::kStarted:
      checked.doing = reply.started();
      return;
    case CheckReply::kSpace:
      checked.space = reply.space();
      return;
    case CheckReply::kDevices:
      run.devices = reply.devices();
      checked.devices = reply.devices().accelerators();
      return;
    case CheckReply::kCommand:
      if (reply.command().index() < wish_.commands.size() &&
          checked.commands.size() < wish_.commands.size())
        checked.commands.push_back(reply.command());
      return;
    case CheckReply::kOperationsPerS:
      checked.operations_per_s = reply.operations_per_s();
      return;
    case CheckReply::kReady:
      run.is_over = true;
      run.port = reply.ready().port();
      if (!reply.ready().listen_error().empty()) {
        checked.stream_per_s = 0;
        checked.stream_error = reply.ready().listen_error();
      }
      return;
    case CheckReply::kStreamed:
      return take_stream(run, reply.streamed());
    case CheckReply::KIND_NOT_SET:
      return;
  }
}

// A stream counts for both of its hosts: a healthy host has a fast one with another healthy host.
void HealthGate::take_stream(HostRun& run, const CheckStreamed& streamed) {
  if (streamed.round() != round_ || !std::exchange(run.is_streaming, false)) return;
  const auto index = static_cast<std::size_t>(&run - runs_.data());
  const auto place =
      static_cast<std::size_t>(std::find(ring_.begin(), ring_.end(), index) - ring_.begin());
  HostRun& from = runs_[ring_[(place + ring_.size() - distance_) % ring_.size()]];
  for (HostRun* const end : {&run, &from})
    end->checked.stream_per_s =
        std::max(end->checked.stream_per_s.value_or(0), streamed.received_per_s());
  if (!streamed.send_error().empty()) run.checked.stream_error = streamed.send_error();
}

// HostLosses reports them.
void HealthGate::check_lost_hosts() {
  for (HostRun& run : runs_) {
    const HostRecord& host = record(run);
    if (!host.lost && !host.excluded) continue;
    run.is_over = true;
    run.is_streaming = false;
    processes_[run.checked.host] = Process::kNone;
  }
}

HealthGate::HostRun* HealthGate::find(std::size_t host) {
  const auto found = std::find_if(runs_.begin(), runs_.end(),
                                  [host](const HostRun& run) { return run.checked.host == host; });
  return found == runs_.end() ? nullptr : &*found;
}

// ---- The decision -------------------------------------------------------------------------------

// Simulated hosts share the devices of their machine, and --include leaves some out.
void HealthGate::count_devices() {
  if (!wish_.devices) return;
  std::vector<HostAnswer> answers(job_.hosts.size());
  for (const HostRun& run : runs_) answers[run.checked.host].facts = run.devices;
  for (HostRun& run : runs_) {
    if (!run.checked.devices) continue;
    run.checked.devices =
        static_cast<std::uint32_t>(devices_of_host(job_.options, answers, run.checked.host).size());
    std::string reason = hiding_reason(run.devices);
    for (std::size_t at = 0; (at = reason.find('\n')) != std::string::npos;)
      reason.replace(at, 1, "; ");
    run.checked.device_reason = std::move(reason);
  }
}

bool HealthGate::decide(std::uint32_t generation) {
  std::vector<CheckedHost> checked;
  for (HostRun& run : runs_) {
    if (record(run).lost || record(run).excluded) continue;
    // --doctor examines the space itself.
    if (job_.options.doctor) run.checked.space.reset();
    checked.push_back(std::move(run.checked));
  }
  if (wish_.load && job_.options.verbose > 0)
    for (const std::string& line : load_lines(checked)) job_.print("--check-load: " + line);
  const std::vector<CheckFailure> failures = judge_checks(wish_, checked);
  runs_.clear();
  if (failures.empty()) return true;
  if (job_.options.doctor) {
    job_.check_findings = check_findings(failures);
    return true;
  }
  bool can_continue = !job_.has_reason();
  for (const CheckFailure& failure : failures) {
    const bool is_known = job_.hosts[failure.host].excluded.has_value();
    if (is_known) continue;
    can_continue = can_continue && job_.hosts.can_do_without(failure.host);
    if (!can_continue) break;
    job_.hosts.exclude(failure.host,
                       {.step = failure.check, .reason = failure.reason, .fix = failure.fix});
  }
  for (const CheckFailure& failure : failures)
    job_.reports.check_failed(failure, static_cast<int>(generation) + 1, can_continue);
  std::vector<Diagnostic> diagnostics = check_diagnostics(failures, when_text(generation));
  if (can_continue) {
    for (const Diagnostic& diagnostic : diagnostics)
      job_.print(diagnostic.what + ": " + diagnostic.cause.substr(0, diagnostic.cause.find('\n')));
    return true;
  }
  if (job_.hosts.may_shrink())
    diagnostics.back().cause += "\n" + job_.hosts.range_text() + " needs " +
                                std::to_string(job_.hosts.min_members()) + " healthy hosts";
  job_.reject(std::move(diagnostics), LauncherReason::kRejected);
  return false;
}

void HealthGate::show_progress() {
  std::vector<std::string> awaited;
  RemoteText doing;
  for (const HostRun& run : runs_) {
    if (run.is_over) continue;
    awaited.push_back(run.checked.name);
    if (doing.empty()) doing = run.checked.doing;
  }
  const auto passed = std::chrono::duration_cast<std::chrono::seconds>(steady_now() - begun_);
  const std::string line = "checking the hosts, " + std::to_string(passed.count()) + " s of " +
                           std::to_string(wish_.limit.count() / 1000) + " s: waiting for " +
                           fold_host_names(awaited) +
                           (doing.empty() ? "" : " (" + doing.line() + ")");
  if (job_.options.quiet || passed < std::chrono::seconds(1)) return;
  if (job_.screen.output().has_terminal()) return job_.screen.status_line(line);
  const bool is_first = shown_ == begun_;
  if (steady_now() - shown_ < (is_first ? kFirstProgress : kProgressPeriod)) return;
  shown_ = steady_now();
  job_.print(line);
}

}  // namespace ivy
