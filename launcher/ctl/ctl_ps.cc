#include <cstdio>
#include <set>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/job/hosted_job.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Columns of a command in the table; --json has all of it.
constexpr std::size_t kCommandColumns = 60;

std::vector<std::string> host_names(const ctl::JobDescription& job) {
  std::vector<std::string> names;
  for (const ctl::HostPart& host : job.hosts()) names.push_back(host.name());
  return names;
}

template <class Words>
boost::json::array json_list(const Words& words) {
  boost::json::array list;
  for (const std::string& word : words) list.emplace_back(json_text(word));
  return list;
}

// " (1 lost, 2 replaced)"
std::string losses_text(const ctl::JobDescription& job) {
  std::size_t lost = 0;
  for (const std::string& line : job.losses()) lost += line.starts_with("lost: ") ? 1 : 0;
  const std::size_t replaced = static_cast<std::size_t>(job.losses_size()) - lost;
  std::string text;
  if (lost > 0) text = std::to_string(lost) + " lost";
  if (replaced > 0) text += (text.empty() ? "" : ", ") + std::to_string(replaced) + " replaced";
  return text.empty() ? "" : " (" + text + ")";
}

ListRow row_of(const std::string& job_id, const ctl::JobDescription& job) {
  const std::string ranks = job.world_size() == 0 ? "-"
                                                  : std::to_string(job.running()) + "/" +
                                                        std::to_string(job.world_size());
  const std::vector<std::string> hosts = host_names(job);
  ListRow row;
  row.cells = {short_id(job_id),
               std::to_string(job.pid()),
               job.state(),
               table_cell(fold_host_names(hosts), kCommandColumns),
               ranks + losses_text(job),
               elapsed_since(job.since_unix_ms()),
               table_cell(joined(job.command(), " "), kCommandColumns)};
  row.json = {{"job", json_text(job_id)},
              {"pid", job.pid()},
              {"state", json_text(job.state())},
              {"hosts", json_list(hosts)},
              {"world_size", job.world_size()},
              {"running", job.running()},
              {"ended", job.ended()},
              {"since_unix_ms", job.since_unix_ms()},
              {"command", json_list(job.command())},
              {"working_directory", json_text(job.working_directory())},
              {"log_directory", json_text(job.log_directory())},
              {"losses", json_list(job.losses())},
              {"generation", job.generation()},
              {"detached", job.detached()}};
  return row;
}

// A job that cannot be asked, and why.
ListRow silent_row(const std::string& job_id, const std::string& why) {
  return {{short_id(job_id), "-", why, "-", "-", "-", "-"},
          {{"job", json_text(job_id)}, {"state", json_text(why)}}};
}

}  // namespace

int ctl_ps(const CtlOptions& options) {
  if (options.all_hosts || !options.hosts.empty()) return ctl_ps_hosts(options);
  std::vector<ListRow> rows;
  std::set<std::string> listed;
  for (const FoundJob& job : find_job_places()) {
    const std::string& id = job.place.job_id;
    const Result<ctl::JobDescription> described =
        job.is_alive ? describe_job(job.place) : Error{Code::kNotFound, "no launcher"};
    // It ended while we looked.
    if (!described.ok() && described.error().code == Code::kUnavailable) continue;
    listed.insert(id);
    rows.push_back(described.ok() ? row_of(id, *described)
                                  : silent_row(id, job.is_alive ? "not answering" : "no launcher"));
  }
  // What runs on this host of jobs that were launched elsewhere, or whose launcher left no record.
  for (const HostedJob& hosted : find_hosted_jobs())
    if (listed.insert(hosted.job_id).second)
      rows.push_back(silent_row(hosted.job_id, "no launcher here"));
  print_list({"JOB", "PID", "STATE", "HOSTS", "RUNNING", "TIME", "COMMAND"}, rows, options.json);
  if (rows.empty() && !options.json) ctl_say("you have no running jobs on this host");
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
