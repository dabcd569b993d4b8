// ivyctl ps -H: asks the agents of hosts, all at once.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/links/agent/agent_client.h"
#include "launcher/links/choice/carrier.h"
#include "launcher/report/text_columns.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

constexpr std::chrono::milliseconds kDeadline{5'000};
constexpr std::size_t kProgramColumns = 60;

struct HostJob {
  std::string host;
  JobEntry job;
};

Result<std::vector<Host>> hosts_of_running_jobs() {
  std::set<std::string> names;
  for (const FoundJob& found : find_job_places()) {
    if (!found.is_alive) continue;
    const Result<ctl::JobDescription> job = describe_job(found.place);
    if (!job.ok()) continue;
    for (const ctl::HostPart& part : job->hosts()) names.insert(part.name());
  }
  std::vector<Host> hosts;
  for (const std::string& name : names) hosts.emplace_back().name = name;
  if (hosts.empty())
    return Error{Code::kNotFound, "you have no running jobs on this host", "ivyctl ps -H HOSTS"};
  return hosts;
}

// As the hosts were named: answers come in any order.
std::vector<HostJob> in_order(std::vector<HostJob> rows, const std::vector<Host>& hosts) {
  std::map<std::string, std::size_t> places;
  for (const Host& host : hosts) places.try_emplace(host.name, places.size());
  std::stable_sort(rows.begin(), rows.end(), [&](const HostJob& a, const HostJob& b) {
    return std::pair(places[a.host], a.job.job_id.bytes()) <
           std::pair(places[b.host], b.job.job_id.bytes());
  });
  return rows;
}

void print_rows(const std::vector<HostJob>& rows) {
  std::vector<TextRow> lines{{"HOST", "JOB", "TIME", "LAUNCHER", "ATTACHED", "PROGRAM"}};
  for (const HostJob& row : rows)
    lines.push_back(
        {row.host, short_id(row.job.job_id.line()), elapsed_since(row.job.opened_at_unix_s * 1000),
         table_cell(row.job.user + "@" + row.job.launcher_host, kProgramColumns),
         row.job.attached ? "yes" : "no", table_cell(row.job.program, kProgramColumns)});
  std::fputs(text_columns(lines, "").c_str(), stdout);
}

boost::json::object json_of(const HostJob& row) {
  return {{"host", json_text(row.host)},
          {"job", json_text(row.job.job_id.bytes())},
          {"since_unix_ms", row.job.opened_at_unix_s * 1000},
          {"user", json_text(row.job.user.bytes())},
          {"launcher_host", json_text(row.job.launcher_host.bytes())},
          {"attached", row.job.attached},
          {"program", json_text(row.job.program.bytes())}};
}

}  // namespace

int ctl_ps_hosts(const CtlOptions& options) {
  const Result<std::vector<Host>> hosts =
      options.all_hosts ? hosts_of_running_jobs() : parse_host_list(options.hosts, "-H");
  if (!hosts.ok()) {
    ctl_complain(hosts.error());
    return options.all_hosts ? kCtlFailed : kExitUsage;
  }
  boost::asio::io_context loop(1);
  const auto context = make_carrier_context(loop, Options{}, "");
  std::vector<HostJob> rows;
  std::size_t waiting = hosts->size();
  int code = 0;
  list_jobs(loop, context, *hosts, kDeadline,
            [&](const Host& host, const Result<std::vector<JobEntry>>& answer) {
              if (answer.ok()) {
                for (const JobEntry& job : *answer) rows.push_back({host.name, job});
              } else {
                ctl_complain(answer.error().context(host.name));
                code = kCtlFailed;
              }
              if (--waiting == 0) loop.stop();
            });
  loop.run();
  rows = in_order(std::move(rows), *hosts);
  if (options.json) {
    boost::json::array objects;
    for (const HostJob& row : rows) objects.push_back(json_of(row));
    print_json(objects);
  } else if (!rows.empty()) {
    print_rows(rows);
  } else if (code == 0) {
    ctl_say("no job runs on these hosts by way of their agents");
  }
  std::fflush(stdout);
  return code;
}

}  // namespace ivy
