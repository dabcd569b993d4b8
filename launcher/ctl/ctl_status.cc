// ivyctl status: one job, as its launcher describes it, or as it was when it ended.
#include <cstdio>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_job_rows.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"

namespace ivy {
namespace {

Result<ListRow> status_row(const std::string& prefix) {
  const Result<FoundJob> found = choose_job(prefix);
  if (!found.ok()) {
    if (const std::optional<EndedJob> ended = find_ended_job(prefix)) return ended_row(*ended);
    return found.error();
  }
  const std::string& id = found->place.job_id;
  if (!found->is_alive) return silent_row(id, "no launcher");
  return running_row(id, IVY_TRY(describe_job(found->place)));
}

std::string value_line(const boost::json::value& value) {
  if (value.is_string()) return std::string(value.as_string());
  if (!value.is_array()) return json_line(value);
  std::string text;
  for (const boost::json::value& word : value.as_array())
    text += (text.empty() ? "" : " ") + value_line(word);
  return text;
}

}  // namespace

int ctl_status(const CtlOptions& options) {
  const Result<ListRow> row = status_row(options.job);
  if (!row.ok()) return ctl_complain(row.error());
  if (options.json) {
    std::printf("%s\n", json_line(row->json).c_str());
    return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
  }
  std::string text;
  for (const auto& field : row->json) {
    const std::string value = value_line(field.value());
    if (field.key() == "schema" || value.empty()) continue;
    std::string key(field.key());
    key.resize(18, ' ');
    text += (text.empty() ? "" : "\n") + key + " " + table_cell(value, 200);
  }
  return ctl_print(text);
}

}  // namespace ivy
