// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_job_rows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "launcher/ctl/ctl_connection.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Columns of the command and of the hosts in the table; --json contains them whole.
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

}  // namespace

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

ListRow running_row(const std::string& job_id, const ctl::JobDescription& job) {
  const std::string ranks = job.world_size() == 0 ? "-"
                                                  : std::to_string(job.running()) + "/" +
                                                        std::to_string(job.world_size());
  const std::vector<std::string> hosts = host_names(job);
  ListRow row;
  row.cells = {job_cell(job_id, job.name()),
               std::to_string(job.pid()),
               job.state() + (job.orphan() ? " (orphan)" : ""),
               table_cell(fold_host_names(hosts), kCommandColumns),
               ranks + losses_text(job),
               elapsed_since(job.since_unix_ms()),
               table_cell(joined(job.command(), " "), kCommandColumns)};
  row.json = job_object(job_id, job);
  return row;
}

ListRow silent_row(const std::string& job_id, const std::string& why) {
  return {{short_id(job_id), "-", why, "-", "-", "-", "-"},
          {{"schema", kMachineSchema}, {"job", json_text(job_id)}, {"state", json_text(why)}}};
}

ListRow ended_row(const EndedJob& ended) {
  ctl::JobDescription job;
  job.ParseFromString(ended.description);
  job.set_state("ended");
  job.set_running(0);
  ListRow row = running_row(ended.job_id, job);
  row.cells[1] = "-";
  row.cells[2] =
      "exit " + std::to_string(ended.exit_code) + ", " + local_time_text(ended.ended_unix_ms);
  row.cells[4] = job.world_size() == 0 ? "-" : std::to_string(job.world_size());
  const std::int64_t lived_ms = ended.ended_unix_ms - job.since_unix_ms();
  row.cells[5] =
      job.since_unix_ms() == 0 ? "-" : clock_text(std::max<std::int64_t>(lived_ms, 0) / 1000);
  row.json["exit_code"] = ended.exit_code;
  row.json["cause"] = json_text(ended.cause);
  row.json["ended_unix_ms"] = ended.ended_unix_ms;
  return row;
}

}  // namespace ivy
