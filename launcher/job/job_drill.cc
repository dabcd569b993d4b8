// SPDX-License-Identifier: Apache-2.0
// The sections: before the start; injecting; observing; the end.
#include "launcher/job/job_drill.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// The resolution of the times in the table.
constexpr milliseconds kDrillTick{50};
// How long hosts may check whether they can cause a fault; their tools take milliseconds.
constexpr std::chrono::seconds kCheckLimit{20};
// Numbers of checks; those of faults are smaller.
constexpr std::uint32_t kFirstCheck = 1u << 20;
// A fault that ends an attempt is named within seconds. After this time the drill goes on.
constexpr std::int64_t kUnnamedLimitNs = 60'000'000'000;
// The Python hook reacts to this signal, which other processes ignore (sitecustomize.py).
constexpr int kHoldSignal = SIGURG;

HostFault host_fault(Fault fault) {
  switch (fault) {
    case Fault::kCut:
      return HOST_FAULT_CUT;
    case Fault::kSlow:
      return HOST_FAULT_SLOW;
    case Fault::kFullDisk:
      return HOST_FAULT_FULL_DISK;
    default:
      return HOST_FAULT_KILL_SUPERVISOR;
  }
}

milliseconds since(std::int64_t from_ns, std::int64_t to_ns) {
  return milliseconds((to_ns - from_ns) / 1'000'000);
}

std::string seconds_text(milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(time.count()) / 1e3);
  return text;
}

}  // namespace

JobDrill::JobDrill(JobContext& job, DrillActions& actions)
    : job_(job),
      actions_(actions),
      rules_(job.options.drill),
      schedule_(rules_),
      timer_(job.loop) {}

// ---- Before the start ---------------------------------------------------------------------------

DrillWorld JobDrill::world(bool only_running) const {
  DrillWorld world;
  for (const PlannedHost& planned : job_.plan.hosts) {
    const HostRecord& host = job_.hosts[planned.host_index];
    if (only_running && (host.lost || !host.session || !host.session->is_open())) continue;
    const bool shares_network = host.on_this_host || host.host->fake.has_value();
    for (const PlannedWorker& worker : planned.workers) {
      const auto rank = static_cast<std::size_t>(worker.rank);
      if (only_running && (rank >= job_.workers.size() || job_.workers[rank].ended)) continue;
      world.ranks.push_back({worker.rank, world.hosts.size()});
    }
    world.hosts.push_back({planned.host_index, host.name(), shares_network});
  }
  return world;
}

bool JobDrill::reject(const Error& error, std::size_t rule) {
  job_.reject({Diagnostic{.id = "IVY-P075",
                          .what = "--drill '" + rules_[rule].text + "': " + error.message,
                          .fix = error.fix,
                          .exit_code = kExitUsage}},
              LauncherReason::kRejected);
  return false;
}

bool JobDrill::reject(const Check& check) {
  const std::string& host = job_.hosts[check.host].name();
  job_.reject(
      {Diagnostic{.id = "IVY-P076",
                  .what = "--drill '" + rules_[check.rule].text + "': " +
                          std::string(fault_name(check.fault)) + " is not possible on " + host,
                  .where = host,
                  .cause = check.has_answered ? check.why : std::string("no response for 20 s"),
                  .fix = "leave this fault out, or choose other hosts: hosts=",
                  .exit_code = kExitRejected}},
      LauncherReason::kRejected);
  return false;
}

Awaitable<bool> JobDrill::prepare(Sequence& steps) {
  if (rules_.empty()) co_return true;
  const DrillWorld planned = world(/*only_running=*/false);
  for (std::size_t rule = 0; rule < rules_.size(); ++rule)
    if (const Result<void> checked = check_targets(rules_[rule], planned); !checked.ok())
      co_return reject(checked.error(), rule);
  if (!job_.options.dry_run) order_checks();
  const std::chrono::steady_clock::time_point limit = steady_now() + kCheckLimit;
  const auto is_open = [](const Check& check) { return !check.has_answered; };
  while (std::any_of(checks_.begin(), checks_.end(), is_open) && steady_now() < limit)
    co_await steps.notified(limit);
  const auto failed = std::find_if(checks_.begin(), checks_.end(), [](const Check& check) {
    return !check.has_answered || !check.why.empty();
  });
  if (failed != checks_.end()) co_return reject(*failed);
  job_.print("warning: drill: this job injects faults (--drill). The first ones:");
  for (const std::string& line : drill_plan_lines(rules_, planned)) job_.screen.print(line + "\n");
  if (!job_.options.dry_run) schedule_tick();
  co_return true;
}

void JobDrill::order_checks() {
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    for (const Fault fault : rules_[rule].faults) {
      if (!is_host_task(fault)) continue;
      // With pick `all`, every host that this fault may hit.
      DrillRule everywhere = rules_[rule];
      if (everywhere.hosts == DrillRule::Pick::kAny) everywhere.hosts = DrillRule::Pick::kAll;
      const DrillWorld planned = world(/*only_running=*/false);
      std::vector<std::size_t> hosts;
      for (std::uint64_t draw = 0; draw < planned.hosts.size(); ++draw)
        for (const std::size_t host : pick_target(everywhere, fault, draw, planned).hosts)
          if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
      for (const std::size_t host : hosts) {
        const std::size_t index = planned.hosts[host].index;
        DrillOrder order = order_for(rules_[rule], fault, index);
        order.set_number(kFirstCheck + static_cast<std::uint32_t>(checks_.size()));
        order.set_is_check(true);
        checks_.push_back({.host = index, .fault = fault, .rule = rule, .why = {}});
        send(index, order);
      }
    }
  }
}

DrillOrder JobDrill::order_for(const DrillRule& rule, Fault fault, std::size_t host) const {
  DrillOrder order;
  order.set_fault(host_fault(fault));
  order.set_lasts_ms(static_cast<std::uint32_t>(rule.lasts.count()));
  order.set_interface(job_.hosts[host].interface);
  order.set_address(job_.plan.master_address);
  order.set_rate(rule.rate);
  order.set_delay_ms(static_cast<std::uint32_t>(rule.delay.count()));
  order.set_path(rule.path);
  order.set_max_bytes(rule.size);
  return order;
}

void JobDrill::send(std::size_t host, const DrillOrder& order) {
  hosts_.try_emplace(host);
  Command command;
  command.mutable_task_input()->set_task(TASK_DRILL);
  command.mutable_task_input()->set_bytes(stage::framed(order.SerializeAsString()));
  job_.hosts.send(host, command);
}

void JobDrill::take(std::size_t host, const TaskOutput& output) {
  const auto known = hosts_.find(host);
  if (known == hosts_.end()) return;
  known->second.feed(output.bytes());
  for (;;) {
    const Result<std::optional<std::string>> message = known->second.next();
    DrillReply reply;
    if (!message.ok() || !*message || !reply.ParseFromString(**message)) break;
    const std::string why = RemoteText(reply.why()).line();
    if (reply.number() >= kFirstCheck) {
      const std::size_t index = reply.number() - kFirstCheck;
      if (index >= checks_.size() || checks_[index].host != host) continue;
      checks_[index].has_answered = true;
      checks_[index].why = reply.step() == DRILL_FAILED ? why : "";
      continue;
    }
    const std::size_t index = reply.number() - 1;
    if (index >= job_.faults.faults().size()) continue;
    InjectedFault& fault = job_.faults.faults()[index];
    const std::string name = "drill " + std::to_string(fault.number) + ": ";
    if (reply.step() == DRILL_FAILED) {
      job_.print("warning: " + name + std::string(fault_name(fault.fault)) + " on " +
                 job_.hosts[host].name() + ": " + why);
      if (fault.failure.empty() && !fault.is_over(monotonic_ns())) fault.failure = why;
    }
    if (reply.step() == DRILL_ENDED) {
      job_.print(name + job_.hosts[host].name() + " is as before");
      job_.reports.drill(fault, "ended");
    }
  }
  if (!output.ended()) return;
  hosts_.erase(known);
  for (InjectedFault& fault : job_.faults.faults()) {
    const bool is_here = std::find(fault.hosts.begin(), fault.hosts.end(),
                                   job_.hosts[host].name()) != fault.hosts.end();
    if (is_here && is_host_task(fault.fault) && fault.fault != Fault::kKillSupervisor &&
        fault.recovered_ns == 0 && fault.verdict == InjectedFault::Verdict::kOpen)
      fault.failure = RemoteText(output.why()).line();
  }
  for (Check& check : checks_) {
    if (check.host != host || check.has_answered) continue;
    check.has_answered = true;
    check.why = RemoteText(output.why()).line();
  }
}

// ---- Injecting ----------------------------------------------------------------------------------

void JobDrill::schedule_tick() {
  timer_.expires_after(kDrillTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    tick();
    schedule_tick();
  });
}

void JobDrill::tick() {
  const std::int64_t now_ns = monotonic_ns();
  continue_ranks(now_ns);
  for (InjectedFault& fault : job_.faults.faults()) observe(fault, now_ns);
  const std::optional<DueFault> due = schedule_.next();
  if (!due || !may_inject() || since(job_.job_started_at_ns, now_ns) < due->at) return;
  inject(*due, now_ns);
}

// Faults wait until all ranks run (with --progress-match, until they have printed a step) and the
// last one that ends an attempt has been named: otherwise no verdict could be attributed to it.
bool JobDrill::may_inject() const {
  if (job_.phase.state() != JobState::kRunning || job_.has_reason() || job_.is_muted) return false;
  if (job_.workers.empty() || !job_.workers.all_started()) return false;
  if (job_.options.progress_match && !job_.screen.output().first_step()) return false;
  for (const WorkerRecord& worker : job_.workers)
    if (worker.has_failed() && !worker.end.tolerated) return false;
  const std::int64_t now_ns = monotonic_ns();
  return std::none_of(job_.faults.faults().begin(), job_.faults.faults().end(),
                      [&](const InjectedFault& fault) {
                        return fault.must_be_named() && fault.failure.empty() &&
                               fault.generation == job_.generation &&
                               fault.verdict == InjectedFault::Verdict::kOpen &&
                               now_ns - fault.at_ns < kUnnamedLimitNs;
                      });
}

void JobDrill::inject(const DueFault& due, std::int64_t now_ns) {
  const DrillRule& rule = rules_[due.rule];
  const DrillWorld running = world(/*only_running=*/true);
  const DrillTarget target = pick_target(rule, due.fault, due.draw, running);
  schedule_.take(since(job_.job_started_at_ns, now_ns));
  if (target.empty()) return;  // The listed ranks have exited, or their hosts are gone.
  InjectedFault& fault = job_.faults.add(due.fault, now_ns);
  fault.target = target_text(target, running);
  fault.generation = job_.generation;
  fault.at_s = static_cast<double>(now_ns - job_.job_started_at_ns) / 1e9;
  fault.last_step = job_.screen.output().step();
  for (const DrillWorld::Rank& rank : target.ranks) fault.ranks.push_back(rank.rank);
  for (const std::size_t host : target.hosts) fault.hosts.push_back(running.hosts[host].name);
  if (has_duration(due.fault))
    fault.lasts_until_ns = now_ns + std::chrono::nanoseconds(rule.lasts).count();
  job_.print("drill " + std::to_string(fault.number) + ": " + std::string(fault_name(due.fault)) +
             " " + fault.target +
             (has_duration(due.fault) ? " for " + seconds_text(rule.lasts) : ""));
  job_.reports.drill(fault, "injected");
  cause(rule, target, running, fault);
}

void JobDrill::cause(const DrillRule& rule, const DrillTarget& target, const DrillWorld& world,
                     InjectedFault& fault) {
  switch (fault.fault) {
    case Fault::kKill:
      return signal(target, world, SIGKILL);
    case Fault::kSegfault:
      return signal(target, world, SIGSEGV);
    case Fault::kHoldGil:
      return signal(target, world, kHoldSignal);
    case Fault::kStop:
      stopped_.push_back({fault.lasts_until_ns, fault.generation, target, fault.number});
      return signal(target, world, SIGSTOP);
    case Fault::kNotice:
    case Fault::kDrain:
      for (const std::size_t host : target.hosts)
        give_notice(rule, fault.fault, world.hosts[host].index);
      return;
    case Fault::kCut:
    case Fault::kSlow:
    case Fault::kFullDisk:
    case Fault::kKillSupervisor:
      for (const std::size_t host : target.hosts) {
        DrillOrder order = order_for(rule, fault.fault, world.hosts[host].index);
        order.set_number(static_cast<std::uint32_t>(fault.number));
        send(world.hosts[host].index, order);
      }
      return;
  }
}

void JobDrill::signal(const DrillTarget& target, const DrillWorld& world, int number) {
  for (const std::size_t host : target.hosts) {
    Command command;
    SignalWorkers& order = *command.mutable_signal_workers();
    order.set_signal(number);
    for (const DrillWorld::Rank& rank : target.ranks)
      if (rank.host == host) order.add_ranks(static_cast<std::uint32_t>(rank.rank));
    job_.hosts.send(world.hosts[host].index, command);
  }
}

void JobDrill::give_notice(const DrillRule& rule, Fault fault, std::size_t host) {
  HostNotice notice;
  notice.set_source(fault == Fault::kDrain ? "Slurm" : "--drill");
  notice.set_reason(fault == Fault::kDrain ? "the node is being drained (--drill)"
                                           : "the host will be stopped");
  const std::int64_t deadline_ns = monotonic_ns() + std::chrono::nanoseconds(rule.deadline).count();
  notice.set_deadline_ns(
      static_cast<std::uint64_t>(job_.hosts[host].session->host_time(deadline_ns)));
  actions_.drill_notice(host, notice);
}

// A restart continues all processes before it stops them, so only ranks of the same attempt are
// continued here.
void JobDrill::continue_ranks(std::int64_t now_ns) {
  for (const Continuation& stopped : stopped_) {
    if (now_ns < stopped.at_ns || stopped.generation != job_.generation) continue;
    const DrillWorld running = world(/*only_running=*/true);
    DrillTarget target;
    for (const DrillWorld::Rank& rank : running.ranks) {
      const bool is_stopped =
          std::any_of(stopped.target.ranks.begin(), stopped.target.ranks.end(),
                      [&rank](const DrillWorld::Rank& other) { return other.rank == rank.rank; });
      if (!is_stopped) continue;
      target.ranks.push_back(rank);
      if (target.hosts.empty() || target.hosts.back() != rank.host)
        target.hosts.push_back(rank.host);
    }
    if (target.empty()) continue;
    signal(target, running, SIGCONT);
    job_.print("drill " + std::to_string(stopped.number) + ": " + target_text(target, running) +
               (target.ranks.size() == 1 ? " continues" : " continue"));
    job_.reports.drill(job_.faults.faults()[stopped.number - 1], "ended");
  }
  std::erase_if(stopped_, [&](const Continuation& stopped) {
    return now_ns >= stopped.at_ns || stopped.generation != job_.generation;
  });
}

// ---- Observing ----------------------------------------------------------------------------------

void JobDrill::observe(InjectedFault& fault, std::int64_t now_ns) const {
  if (fault.recovered_ns != 0 || !fault.failure.empty()) return;
  const std::optional<double> step = job_.screen.output().step();
  const bool is_same_attempt = fault.generation == job_.generation;
  if (has_recovered(fault, now_ns)) {
    fault.recovered_ns = now_ns;
    const std::optional<double> first = job_.screen.output().first_step();
    if (!is_same_attempt && first && fault.last_step)
      fault.steps_lost = std::max(0.0, *fault.last_step - *first + 1);
    if (is_same_attempt && step && fault.last_step) fault.steps_lost = 0;
    return;
  }
  // Steps after this one show that a job that was only held up has recovered.
  const bool is_held_up = !fault.must_be_named() && fault.is_over(now_ns);
  if (is_same_attempt && !is_held_up && step) fault.last_step = step;
}

bool JobDrill::has_recovered(const InjectedFault& fault, std::int64_t now_ns) const {
  if (job_.phase.state() != JobState::kRunning) return false;
  if (job_.workers.empty() || !job_.workers.all_started()) return false;
  for (const WorkerRecord& worker : job_.workers) {
    if (worker.has_failed() && !worker.end.tolerated) return false;
    if (!worker.ended && worker.end.pid == 0) return false;
  }
  const bool measures = job_.options.progress_match.has_value();
  if (fault.generation != job_.generation)
    return !measures || job_.screen.output().first_step().has_value();
  // With --on-failure shrink and replace the attempt goes on.
  const bool repairs = job_.options.on_failure != OnFailure::kRestart;
  if (fault.must_be_named())
    return repairs && fault.verdict != InjectedFault::Verdict::kOpen &&
           fault.fault != Fault::kNotice && fault.fault != Fault::kDrain;
  const std::optional<double> step = job_.screen.output().step();
  return fault.is_over(now_ns) &&
         (!measures || !fault.last_step || (step && *step > *fault.last_step));
}

// ---- The end ------------------------------------------------------------------------------------

void JobDrill::stop() {
  timer_.cancel();
  for (const auto& [host, unused] : hosts_) {
    Command command;
    command.mutable_task_input()->set_task(TASK_DRILL);
    command.mutable_task_input()->set_end(true);
    job_.hosts.send(host, command);
  }
  hosts_.clear();
}

std::string JobDrill::table() {
  for (const InjectedFault& fault : job_.faults.faults()) job_.reports.drill(fault, "result");
  const std::string table = job_.faults.table(job_.options.progress_match.has_value());
  return table.empty() ? "" : "ivyrun: " + table;
}

}  // namespace ivy
