#include <algorithm>
#include <cstdio>

#include "launcher/ctl_connection.h"
#include "launcher/ctl_table.h"
#include "launcher/ctl_verbs.h"
#include "launcher/hosted_job.h"
#include "launcher/hosts.h"

namespace ivy {
namespace {

// Of a command in the table; --json has all of it.
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

std::string command_line(const ctl::JobDescription& job) {
  std::string text;
  for (const std::string& word : job.command()) text += (text.empty() ? "" : " ") + word;
  return text;
}

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
  std::vector<std::vector<std::string>> lines{
      {"JOB", "PID", "STATE", "HOSTS", "RUNNING", "TIME", "COMMAND"}};
  for (const Row& row : rows) lines.push_back(cells_of(row));
  print_table(std::move(lines));
}

template <class Words>
std::string json_list(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + json_text(word);
  return "[" + text + "]";
}

std::string json_of(const Row& row) {
  const ctl::JobDescription& job = row.description;
  std::string text = "  {\"job\": " + json_text(row.job.place.job_id);
  if (!row.trouble.empty()) return text + ", \"state\": " + json_text(row.trouble) + "}";
  text += ", \"pid\": " + std::to_string(job.pid()) + ", \"state\": " + json_text(job.state()) +
          ", \"hosts\": " + json_list(host_names(job)) +
          ", \"world_size\": " + std::to_string(job.world_size()) +
          ", \"running\": " + std::to_string(job.running()) +
          ", \"ended\": " + std::to_string(job.ended()) +
          ", \"since_unix_ms\": " + std::to_string(job.since_unix_ms()) +
          ", \"command\": " + json_list(job.command()) +
          ", \"working_directory\": " + json_text(job.working_directory()) +
          ", \"log_directory\": " + json_text(job.log_directory()) +
          ", \"generation\": " + std::to_string(job.generation()) +
          ", \"detached\": " + (job.detached() ? "true" : "false");
  return text + "}";
}

void print_json(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) text += (text.empty() ? "\n" : ",\n") + json_of(row);
  std::printf("[%s%s]\n", text.c_str(), rows.empty() ? "" : "\n");
}

// What this host has of jobs that were launched elsewhere, or whose launcher left nothing.
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
    print_json(rows);
  } else if (rows.empty()) {
    ctl_say("you have no running jobs on this host");
  } else {
    print_rows(rows);
  }
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
