// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <set>
#include <string>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_job_rows.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/ctl/hosted_job.h"

namespace ivy {
namespace {

// Reports jobs of launchers that are not visible from here, as in a container or in a job step with
// a separate /tmp.
void print_other_jobs(const std::set<pid_t>& known) {
  const std::string user = geteuid() == 0 ? "" : " -S " + std::to_string(geteuid());
  for (const pid_t pid : launchers_with_another_tmp()) {
    if (known.contains(pid)) continue;
    const std::string number = std::to_string(pid);
    ctl_note("ivyrun (pid " + number +
             ") has a private /tmp, so ivyctl cannot see its job from here: " +
             "run ivyctl in the same container or job step, or as root: nsenter -t " + number +
             " -m" + user + " ivyctl ps");
  }
}

}  // namespace

int ctl_ps(const CtlOptions& options) {
  if (options.all_hosts || !options.hosts.empty()) return ctl_ps_hosts(options);
  std::vector<ListRow> rows;
  std::set<std::string> listed;
  std::set<pid_t> known;
  for (const FoundJob& job : find_launcher_directories()) {
    const std::string& id = job.directory.job_id;
    const Result<ctl::JobDescription> described =
        job.is_alive ? describe_job(job.directory) : Error{Code::kNotFound, "no launcher"};
    // It ended in the meantime.
    if (!described.ok() && described.error().code == Code::kUnavailable) continue;
    listed.insert(id);
    if (described.ok()) known.insert(described->pid());
    rows.push_back(described.ok() ? running_row(id, *described)
                                  : silent_row(id, job.is_alive ? "not answering" : "no launcher"));
  }
  // Adds jobs with processes on this host that were launched elsewhere, or whose launcher left no
  // record.
  for (const HostedJob& hosted : find_hosted_jobs())
    if (listed.insert(hosted.job_id).second)
      rows.push_back(silent_row(hosted.job_id, "no launcher here"));
  if (options.all)
    for (const EndedJob& ended : find_ended_jobs())
      if (listed.insert(ended.job_id).second) rows.push_back(ended_row(ended));
  print_jobs(rows, options.json);
  if (rows.empty() && !options.json)
    ctl_note(options.all ? "you have no running or recently finished jobs on this host"
                         : "you have no running jobs on this host");
  if (!options.json) print_other_jobs(known);
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
