// SPDX-License-Identifier: Apache-2.0
// ivyctl ps -H: queries the agents of all hosts in parallel.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "launcher/ctl/ctl_agents.h"
#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

constexpr std::size_t kProgramColumns = 60;

struct HostJob {
  std::size_t host_index = 0;  // Index of its host in the list of hosts.
  std::string host;
  JobEntry job;
};

Result<std::vector<Host>> hosts_of_running_jobs() {
  std::set<std::string> names;
  for (const FoundJob& found : find_launcher_directories()) {
    if (!found.is_alive) continue;
    const Result<ctl::JobDescription> job = describe_job(found.directory);
    if (!job.ok()) continue;
    for (const ctl::HostPart& part : job->hosts()) names.insert(part.name());
  }
  std::vector<Host> hosts;
  for (const std::string& name : names) hosts.emplace_back().name = name;
  if (hosts.empty())
    return Error{Code::kNotFound, "you have no running jobs on this host", "ivyctl ps -H HOSTS"};
  return hosts;
}

ListRow row_of(const HostJob& row) {
  const JobEntry& job = row.job;
  const std::int64_t since_ms = job.opened_at_unix_s * 1000;
  return {{row.host, short_id(job.job_id.line()), elapsed_since(since_ms),
           table_cell(job.user + "@" + job.launcher_host, kProgramColumns),
           job.attached ? "yes" : "no", table_cell(job.program, kProgramColumns)},
          {{"host", json_text(row.host)},
           {"job", json_text(job.job_id.bytes())},
           {"since_unix_ms", since_ms},
           {"user", json_text(job.user.bytes())},
           {"launcher_host", json_text(job.launcher_host.bytes())},
           {"attached", job.attached},
           {"program", json_text(job.program.bytes())}}};
}

}  // namespace

int ctl_ps_hosts(const CtlOptions& options) {
  const Result<std::vector<Host>> hosts =
      options.all_hosts ? hosts_of_running_jobs() : parse_host_list(options.hosts, "-H");
  if (!hosts.ok()) return ctl_fail(hosts.error(), options.all_hosts ? kCtlFailed : kExitUsage);
  std::map<std::string, std::size_t> indexes;
  for (const Host& host : *hosts) indexes.try_emplace(host.name, indexes.size());
  std::vector<HostJob> jobs;
  const bool all_answered = list_jobs_on(*hosts, [&](const Host& host, const JobEntry& job) {
    jobs.push_back({indexes[host.name], host.name, job});
  });
  // Answers arrive in any order.
  std::stable_sort(jobs.begin(), jobs.end(), [](const HostJob& a, const HostJob& b) {
    return std::pair(a.host_index, a.job.job_id.bytes()) <
           std::pair(b.host_index, b.job.job_id.bytes());
  });
  std::vector<ListRow> rows;
  for (const HostJob& job : jobs) rows.push_back(row_of(job));
  print_list({"HOST", "JOB", "TIME", "LAUNCHER", "ATTACHED", "PROGRAM"}, rows, options.json);
  if (rows.empty() && all_answered && !options.json)
    ctl_note("the agents of these hosts run no jobs");
  std::fflush(stdout);
  return all_answered ? 0 : kCtlFailed;
}

}  // namespace ivy
