// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_job_rows.h"

#include <sys/utsname.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "launcher/ctl/ctl_connection.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Limit of the command and of the hosts in the table; --json contains them whole.
constexpr std::size_t kCommandColumns = 60;

std::vector<std::string> host_names(const ctl::JobDescription& job) {
  std::vector<std::string> names;
  for (const ctl::HostPart& host : job.hosts()) names.push_back(host.name());
  return names;
}

// Returns one for each of host_names(); empty if an older launcher did not report them.
std::vector<std::string> architectures(const ctl::JobDescription& job) {
  std::vector<std::string> names;
  for (const ctl::HostPart& host : job.hosts()) names.push_back(host.architecture());
  return names;
}

// Returns the first cell of a row: "3f2a91c07d55 bert-large".
std::string job_cell(const std::string& job_id, const std::string& name) {
  return name.empty() ? short_id(job_id) : short_id(job_id) + " " + table_cell(name, 24);
}

boost::json::object job_object(const std::string& job_id, const ctl::JobDescription& job) {
  return {{"schema", kMachineSchema},
          {"job", json_text(job_id)},
          {"name", json_text(job.name())},
          {"pid", job.pid()},
          {"state", json_text(job.state())},
          {"hosts", json_list(host_names(job))},
          {"architectures", json_list(architectures(job))},
          {"spares", json_list(spare_names(job))},
          {"world_size", job.world_size()},
          {"running", job.running()},
          {"ended", job.ended()},
          {"since_unix_ms", job.since_unix_ms()},
          {"command", json_list(job.command())},
          {"working_directory", json_text(job.working_directory())},
          {"log_directory", json_text(job.log_directory())},
          {"losses", json_list(job.losses())},
          {"generation", job.generation()},
          {"detached", job.detached()},
          {"orphan", job.orphan()}};
}

// Returns " (1 lost, 2 replaced)".
std::string losses_text(const ctl::JobDescription& job) {
  std::string text;
  if (job.lost() > 0) text = std::to_string(job.lost()) + " lost";
  if (job.replaced() > 0)
    text += (text.empty() ? "" : ", ") + std::to_string(job.replaced()) + " replaced";
  return text.empty() ? "" : " (" + text + ")";
}

// The cells of a row, or the names of the columns.
struct JobCells {
  std::string job = {};
  std::string pid = "-";
  std::string state = {};
  std::string hosts = "-";
  std::string ranks = "-";
  std::string time = "-";
  std::string command = "-";
};

TextRow text_row(const JobCells& cells) {
  return {cells.job, cells.pid, cells.state, cells.hosts, cells.ranks, cells.time, cells.command};
}

// Returns the cells that are the same for running and ended jobs.
JobCells common_cells(const std::string& job_id, const ctl::JobDescription& job) {
  std::string hosts = table_cell(fold_host_names(host_names(job)), kCommandColumns);
  if (job.spares_size() > 0)
    hosts += " +" + counted(static_cast<std::uint64_t>(job.spares_size()), "spare");
  return {.job = job_cell(job_id, job.name()),
          .hosts = hosts,
          .command = table_cell(joined(job.command(), " "), kCommandColumns)};
}

}  // namespace

std::string running_state(const ctl::JobDescription& job) {
  return job.state() + (job.orphan() ? " (orphan)" : "");
}

std::string hosts_text(const ctl::JobDescription& job) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const ctl::HostPart& host : job.hosts()) {
    auto known = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.first == host.architecture();
    });
    if (known == groups.end())
      known = groups.insert(groups.end(), {host.architecture(), std::vector<std::string>()});
    known->second.push_back(host.name());
  }
  std::string text;
  for (const auto& [architecture, names] : groups) {
    text += (text.empty() ? "" : ", ") + fold_host_names(names);
    if (!architecture.empty()) text += " (" + architecture + ")";
  }
  return text;
}

std::vector<std::string> spare_names(const ctl::JobDescription& job) {
  return {job.spares().begin(), job.spares().end()};
}

std::string spares_text(const ctl::JobDescription& job) {
  if (job.spares_size() == 0) return "";
  return counted(static_cast<std::uint64_t>(job.spares_size()), "spare") + ": " +
         escape_control(fold_host_names(spare_names(job)));
}

std::string other_machines(const ctl::JobDescription& job) {
  utsname here{};
  uname(&here);
  const bool differs =
      std::any_of(job.hosts().begin(), job.hosts().end(), [&](const ctl::HostPart& host) {
        return !host.architecture().empty() && host.architecture() != here.machine;
      });
  return differs ? "hosts: " + escape_control(hosts_text(job)) : "";
}

ListRow running_row(const std::string& job_id, const ctl::JobDescription& job) {
  JobCells cells = common_cells(job_id, job);
  cells.pid = std::to_string(job.pid());
  cells.state = running_state(job);
  if (job.world_size() > 0)
    cells.ranks = std::to_string(job.running()) + "/" + std::to_string(job.world_size());
  cells.ranks += losses_text(job);
  cells.time = elapsed_since(job.since_unix_ms());
  return {text_row(cells), job_object(job_id, job)};
}

ListRow silent_row(const std::string& job_id, const std::string& why) {
  return {text_row({.job = short_id(job_id), .state = why}),
          {{"schema", kMachineSchema}, {"job", json_text(job_id)}, {"state", json_text(why)}}};
}

ListRow ended_row(const EndedJob& ended) {
  ctl::JobDescription job;
  job.ParseFromString(ended.description);
  job.set_state("ended");
  job.set_running(0);
  JobCells cells = common_cells(ended.job_id, job);
  cells.state =
      "exit " + std::to_string(ended.exit_code) + ", " + local_time_text(ended.ended_unix_ms);
  if (job.world_size() > 0) cells.ranks = std::to_string(job.world_size());
  const std::int64_t lived_ms = ended.ended_unix_ms - job.since_unix_ms();
  if (job.since_unix_ms() != 0) cells.time = clock_text(std::max<std::int64_t>(lived_ms, 0) / 1000);
  ListRow row{text_row(cells), job_object(ended.job_id, job)};
  row.json["exit_code"] = ended.exit_code;
  row.json["cause"] = json_text(ended.cause);
  row.json["ended_unix_ms"] = ended.ended_unix_ms;
  return row;
}

void print_jobs(const std::vector<ListRow>& rows, bool as_json) {
  const JobCells names{.job = "JOB",
                       .pid = "PID",
                       .state = "STATE",
                       .hosts = "HOSTS",
                       .ranks = "RANKS",
                       .time = "TIME",
                       .command = "COMMAND"};
  print_list(text_row(names), rows, as_json);
}

}  // namespace ivy
