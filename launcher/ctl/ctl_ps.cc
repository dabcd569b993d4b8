#include <algorithm>
#include <cstdio>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/job/hosted_job.h"
#include "launcher/options/hosts.h"
#include "launcher/report/text_columns.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Columns of a command in the table; --json has all of it.
constexpr std::size_t kCommandColumns = 60;

struct Row {
  FoundJob job;
  std::string trouble;  // Why there is no description.
  ctl::JobDescription description;
};

std::vector<std::string> host_names(const ctl::JobDescription& job) {
  std::vector<std::string> names;
  for (const ctl::HostPart& host : job.hosts()) names.push_back(host.name());
  return names;
}

std::string command_line(const ctl::JobDescription& job) { return joined(job.command(), " "); }

std::vector<std::string> cells_of(const Row& row) {
  const ctl::JobDescription& job = row.description;
  const std::string id = short_id(row.job.place.job_id);
  if (!row.trouble.empty()) return {id, "-", row.trouble, "-", "-", "-", "-"};
  const std::string ranks = job.world_size() == 0 ? "-"
                                                  : std::to_string(job.running()) + "/" +
                                                        std::to_string(job.world_size());
  return {id,
          std::to_string(job.pid()),
          job.state(),
          table_cell(fold_host_names(host_names(job)), kCommandColumns),
          ranks,
          elapsed_since(job.since_unix_ms()),
          table_cell(command_line(job), kCommandColumns)};
}

void print_rows(const std::vector<Row>& rows) {
  std::vector<TextRow> lines{{"JOB", "PID", "STATE", "HOSTS", "RUNNING", "TIME", "COMMAND"}};
  for (const Row& row : rows) lines.push_back(cells_of(row));
  std::fputs(text_columns(lines, "").c_str(), stdout);
}

template <class Words>
boost::json::array json_list(const Words& words) {
  boost::json::array list;
  for (const std::string& word : words) list.emplace_back(json_text(word));
  return list;
}

boost::json::object json_of(const Row& row) {
  const ctl::JobDescription& job = row.description;
  boost::json::object object{{"job", json_text(row.job.place.job_id)}};
  if (!row.trouble.empty()) {
    object["state"] = json_text(row.trouble);
    return object;
  }
  object["pid"] = job.pid();
  object["state"] = json_text(job.state());
  object["hosts"] = json_list(host_names(job));
  object["world_size"] = job.world_size();
  object["running"] = job.running();
  object["ended"] = job.ended();
  object["since_unix_ms"] = job.since_unix_ms();
  object["command"] = json_list(job.command());
  object["working_directory"] = json_text(job.working_directory());
  object["log_directory"] = json_text(job.log_directory());
  object["generation"] = job.generation();
  object["detached"] = job.detached();
  return object;
}

// Adds what runs on this host of jobs that were launched elsewhere, or whose launcher left no
// record.
void add_hosted_jobs(std::vector<Row>& rows) {
  for (const HostedJob& hosted : find_hosted_jobs()) {
    const bool is_listed = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
      return row.job.place.job_id == hosted.job_id;
    });
    if (is_listed) continue;
    Row& row = rows.emplace_back();
    row.trouble = "no launcher here";
    row.job.place.job_id = hosted.job_id;
  }
}

}  // namespace

int ctl_ps(const CtlOptions& options) {
  if (options.all_hosts || !options.hosts.empty()) return ctl_ps_hosts(options);
  std::vector<Row> rows;
  for (const FoundJob& job : find_job_places()) {
    Row row{job, "", {}};
    if (!job.is_alive) {
      row.trouble = "no launcher";
    } else if (Result<ctl::JobDescription> described = describe_job(job.place); described.ok()) {
      row.description = std::move(described).value();
    } else if (described.error().code == Code::kUnavailable) {
      continue;  // It ended while we looked.
    } else {
      row.trouble = "not answering";
    }
    rows.push_back(std::move(row));
  }
  add_hosted_jobs(rows);
  if (options.json) {
    boost::json::array objects;
    for (const Row& row : rows) objects.push_back(json_of(row));
    print_json(objects);
  } else if (rows.empty()) {
    ctl_say("you have no running jobs on this host");
  } else {
    print_rows(rows);
  }
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
