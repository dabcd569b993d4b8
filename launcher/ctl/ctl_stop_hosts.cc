// SPDX-License-Identifier: Apache-2.0
// ivyctl stop for a job that has no launcher here: through the agents on the hosts of -H, or
// through the job's directory on this host.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "launcher/ctl/ctl_agents.h"
#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/ctl/hosted_job.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/os/clock.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{200};
// A launcher creates its socket for ivyctl at most a second after its start.
constexpr milliseconds kUnknownLauncher{1500};
// For a job's own grace period: 30 s unless its options specify another one, which is not known
// here.
constexpr milliseconds kOwnGrace{45'000};
// For processes that outlive their supervisor. This is short, because the supervisor has waited
// long enough and no other process would kill them.
constexpr milliseconds kLeftoverTimeout{5'000};

// The answers of all hosts, and whether each host has answered.
struct Listed {
  std::map<std::string, std::set<std::string>> hosts_of_job;
  std::map<std::string, std::string> names;  // By id; jobs with a --name.
  bool all_answered = true;
};

Listed list_on(const std::vector<Host>& hosts) {
  Listed listed;
  listed.all_answered = list_jobs_on(hosts, [&](const Host& host, const JobEntry& job) {
    listed.hosts_of_job[job.job_id.line()].insert(host.name);
    if (!job.name.empty()) listed.names[job.job_id.line()] = job.name.bytes();
  });
  return listed;
}

Result<std::string> choose_id(const std::string& prefix, const std::set<std::string>& ids,
                              const std::string& where) {
  std::vector<FoundJob> jobs;
  for (const std::string& id : ids) jobs.emplace_back().directory.job_id = id;
  if (jobs.empty())
    return Error{Code::kNotFound, "you have no running jobs on " + where,
                 "jobs started over SSH are stopped on the host where ivyrun runs, or on "
                 "each of their hosts"};
  const FoundJob chosen = IVY_TRY(choose_job(prefix, jobs));
  return chosen.directory.job_id;
}

// Returns the whole id of the job with this --name if there is exactly one; otherwise the typed
// text.
std::string id_of_name(const std::string& typed, const Listed& listed) {
  std::string id;
  for (const auto& [of, name] : listed.names) {
    if (name != typed) continue;
    if (!id.empty()) return typed;
    id = of;
  }
  return id.empty() ? typed : id;
}

Error takes_own_grace(const std::string& where) {
  return {Code::kFailedPrecondition,
          where + " uses the job's own time from TERM to KILL: it runs an older version",
          "restart its agent with this version (a running job keeps the version that started it)"};
}

std::optional<milliseconds> grace_of(const CtlOptions& options) {
  return options.now ? milliseconds(0) : options.grace;
}

// Calls `is_running` until it returns false. Returns false if that does not happen in time.
template <class IsRunning>
bool wait_until_ended(IsRunning is_running, milliseconds timeout) {
  const std::int64_t until =
      monotonic_ns() + std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
  while (is_running()) {
    if (monotonic_ns() >= until) return false;
    usleep(static_cast<useconds_t>(kPause.count() * 1000));
  }
  return true;
}

int report_end(const std::string& job_id, const std::string& where, bool has_ended,
               milliseconds timeout) {
  const std::string id = "job " + short_id(job_id);
  if (has_ended) {
    ctl_note(id + " has finished on " + where);
    return 0;
  }
  return ctl_fail({Code::kDeadlineExceeded,
                   id + " is still running on " + where + " after " +
                       std::to_string(timeout.count() / 1000) + " s",
                   "its supervisor logs which processes it could not kill: journalctl -u "
                   "'ivy-agent@*'"});
}

int report_leftovers(const std::string& job_id, const std::vector<HostedProcess>& left) {
  std::string named;
  std::string pids;
  for (const HostedProcess& process : left) {
    const std::string pid = std::to_string(process.pid);
    named += (named.empty() ? "pid " : ", pid ") + pid + " (" + process.name + ")";
    pids += (pids.empty() ? "" : ",") + pid;
  }
  return ctl_fail({Code::kDeadlineExceeded,
                   "job " + short_id(job_id) +
                       " left processes on this host that its supervisor could not kill: " + named,
                   "see what they wait for: ps -o pid,stat,wchan,args -p " + pids});
}

}  // namespace

int ctl_stop_on_hosts(const CtlOptions& options) {
  const Result<std::vector<Host>> hosts = parse_host_list(options.hosts, "-H");
  if (!hosts.ok()) return ctl_fail(hosts.error(), kExitUsage);
  Listed listed = list_on(*hosts);
  std::set<std::string> ids;
  for (const auto& [id, where] : listed.hosts_of_job) ids.insert(id);
  const bool is_id = std::any_of(
      ids.begin(), ids.end(), [&](const std::string& id) { return id.starts_with(options.job); });
  const Result<std::string> job_id = choose_id(
      is_id ? options.job : id_of_name(options.job, listed), ids, "the agents of these hosts");
  if (!job_id.ok()) return ctl_fail(job_id.error());
  std::vector<Host> with_job;
  for (const Host& host : *hosts)
    if (listed.hosts_of_job[*job_id].contains(host.name)) with_job.push_back(host);
  const std::optional<milliseconds> grace = grace_of(options);
  bool all_with_grace = true;
  const bool all_answered =
      stop_job_on(with_job, {*job_id, grace}, [&](const Host& host, const StopAnswer& answer) {
        if (!grace || answer.with_grace >= answer.supervisors) return;
        ctl_fail(takes_own_grace(host.name));
        all_with_grace = false;
      });
  if (!all_answered) return kCtlFailed;
  const milliseconds timeout =
      (all_with_grace ? grace.value_or(kOwnGrace) : std::max(*grace, kOwnGrace)) + kStopTimeout;
  Listed now;
  const auto is_running = [&] {
    now = list_on(with_job);
    return now.all_answered && now.hosts_of_job.contains(*job_id);
  };
  const bool has_ended = wait_until_ended(is_running, timeout);
  if (!now.all_answered) return kCtlFailed;
  const std::string where = with_job.size() == 1 ? with_job.front().name : "these hosts";
  const int code = report_end(*job_id, where, has_ended, timeout);
  return listed.all_answered ? code : kCtlFailed;
}

std::optional<int> ctl_stop_on_this_host(const CtlOptions& options) {
  std::set<std::string> ids;
  const std::vector<HostedJob> hosted = find_hosted_jobs();
  for (const HostedJob& job : hosted)
    if (job.job_id.starts_with(options.job)) ids.insert(job.job_id);
  if (ids.empty()) return std::nullopt;
  const Result<std::string> job_id = choose_id(options.job, ids, "this host");
  if (!job_id.ok()) return ctl_fail(job_id.error());
  if (wait_until_ended([&] { return !choose_job(*job_id).ok(); }, kUnknownLauncher))
    return std::nullopt;
  ctl_note("job " + short_id(*job_id) +
           " has no launcher on this host: stopping its processes here");
  HostedProcesses processes(*job_id);
  processes.refresh();
  const std::optional<milliseconds> grace = grace_of(options);
  for (const HostedJob& job : hosted) {
    if (job.job_id != *job_id) continue;
    if (grace && !change_stop_grace(job.directory, *grace)) ctl_fail(takes_own_grace("this host"));
    request_stop(job);
  }
  const milliseconds timeout = std::max(grace.value_or(kOwnGrace), kOwnGrace) + kStopTimeout;
  const auto is_running = [&] {
    processes.refresh();
    const std::vector<HostedJob> now = find_hosted_jobs();
    return std::any_of(now.begin(), now.end(),
                       [&](const HostedJob& job) { return job.job_id == *job_id; });
  };
  const bool has_ended = wait_until_ended(is_running, timeout);
  if (has_ended) {
    const auto is_left = [&] { return !processes.refresh().empty(); };
    if (!wait_until_ended(is_left, kLeftoverTimeout))
      return report_leftovers(*job_id, processes.refresh());
  }
  return report_end(*job_id, "this host", has_ended, timeout);
}

}  // namespace ivy
