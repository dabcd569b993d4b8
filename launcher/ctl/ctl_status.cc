// SPDX-License-Identifier: Apache-2.0
// ivyctl status: describes one job, as reported by its launcher or as recorded at its end.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_job_rows.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// A job as described by its launcher, as recorded at its end, or only its id.
struct Described {
  boost::json::object json;
  std::string state;
  ctl::JobDescription job;
  std::optional<EndedJob> ended;
};

Result<Described> described_job(const std::string& prefix) {
  const Result<FoundJob> found = choose_job(prefix);
  Described described;
  if (!found.ok()) {
    described.ended = find_ended_job(prefix);
    if (!described.ended) return found.error();
    described.json = ended_row(*described.ended).json;
    described.state = how_it_ended(*described.ended);
    described.job.ParseFromString(described.ended->description);
    return described;
  }
  const std::string& id = found->directory.job_id;
  if (found->is_alive) {
    described.job = IVY_TRY(describe_job(found->directory));
    described.json = running_row(id, described.job).json;
    described.state = running_state(described.job);
  } else {
    described.state = "no launcher";
    described.json = silent_row(id, described.state).json;
  }
  described.job.set_job_id(id);
  return described;
}

std::string ranks_text(const Described& described) {
  const ctl::JobDescription& job = described.job;
  const std::string all = std::to_string(job.world_size());
  if (job.world_size() == 0) return "";
  std::string text =
      described.ended ? all : std::to_string(job.running()) + " of " + all + " running";
  for (const std::string& loss : job.losses()) text += "\n" + loss;
  return text;
}

// Formats a field, "logs       /home/me/logs", with a line for each line of the value. A value that
// is too wide for the rest of the line starts on the next line.
std::string field_text(std::string_view name, std::string_view value, std::size_t columns) {
  constexpr std::size_t kNameColumns = 11;
  constexpr std::size_t kIndent = 2;
  std::vector<std::string> lines;
  for (std::string_view rest = value; !rest.empty();)
    lines.push_back(table_cell(std::string(take_part(rest, '\n')), 200));
  std::size_t widest = 0;
  for (const std::string& line : lines) widest = std::max(widest, line.size());
  const bool is_stacked = widest > columns - std::min(columns, kNameColumns);
  std::string text(name);
  if (!is_stacked) text.resize(kNameColumns, ' ');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (is_stacked || i > 0) text += "\n" + std::string(is_stacked ? kIndent : kNameColumns, ' ');
    text += lines[i];
  }
  return text;
}

// Returns the text for people, with the most interesting fields first.
std::string status_text(const Described& described) {
  const ctl::JobDescription& job = described.job;
  const std::string id = described.ended ? described.ended->job_id : job.job_id();
  const std::string started =
      job.since_unix_ms() == 0
          ? ""
          : local_time_text(job.since_unix_ms()) +
                (described.ended ? "" : " (" + elapsed_since(job.since_unix_ms()) + " ago)");
  std::string state = described.state;
  if (job.generation() > 0) state += ", attempt " + std::to_string(job.generation() + 1);
  const std::pair<std::string_view, std::string> lines[] = {
      {"job", short_id(id) + (job.name().empty() ? "" : " (" + job.name() + ")")},
      {"state", state},
      {"started", started},
      {"ended", described.ended ? local_time_text(described.ended->ended_unix_ms) : ""},
      {"ranks", ranks_text(described)},
      {"hosts", hosts_text(job)},
      {"spares", fold_host_names(spare_names(job))},
      {"command",
       joined(std::vector<std::string>(job.command().begin(), job.command().end()), " ")},
      {"directory", job.working_directory()},
      {"logs", job.log_directory()},
      {"launcher", job.pid() == 0 || described.ended ? "" : "pid " + std::to_string(job.pid())},
      {"id", id}};
  std::string text;
  const std::size_t columns = shown_columns().value_or(std::string::npos);
  for (const auto& [name, value] : lines)
    if (!value.empty()) text += (text.empty() ? "" : "\n") + field_text(name, value, columns);
  return text;
}

}  // namespace

int ctl_status(const CtlOptions& options) {
  const Result<Described> described = described_job(options.job);
  if (!described.ok()) return ctl_fail(described.error());
  return ctl_print(options.json ? json_line(described->json) : status_text(*described));
}

}  // namespace ivy
