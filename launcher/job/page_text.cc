#include "launcher/job/page_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>

#include "launcher/job/rank_rows.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

constexpr std::string_view kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n";
constexpr std::string_view kStyle =
    "<style>:root{color-scheme:light dark}body{font:15px/1.4 system-ui,sans-serif;margin:2em}\n"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:left}\n"
    "th{border-bottom:1px solid}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "tr.bad{color:#c22}tr.done{opacity:.6}pre,code{font-family:ui-monospace,monospace}\n"
    "pre{white-space:pre-wrap;border-left:3px solid;padding-left:1em}</style>\n";

// Text of users and of other hosts. Controls, which no browser shows, become a sign of their own.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if ((static_cast<unsigned char>(c) < ' ' && c != '\n') || c == '\x7f') {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

std::string cell(const std::string& text, bool is_number = false) {
  return (is_number ? "<td class=\"n\">" : "<td>") + escaped(text) + "</td>";
}

std::string utc_text(std::int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string state_line(const PageInputs& inputs) {
  const std::int64_t passed_s = (inputs.now_unix_ms - inputs.job.opened_unix_ms) / 1000;
  const std::string state = inputs.job.exit_code
                                ? "ended with exit code " + std::to_string(*inputs.job.exit_code)
                                : inputs.state;
  const bool has_begun = inputs.job.opened_unix_ms > 0 && passed_s >= 0;
  return state + (has_begun ? ", " + clock_text(passed_s) : "") + ", attempt " +
         std::to_string(inputs.job.generation + 1) + ", as of " + utc_text(inputs.now_unix_ms);
}

std::string device_cells(const ctl::RankRow& rank) {
  const bool is_known = rank.devices() > 0;
  const bool is_measured = is_known && rank.device_percent() >= 0;
  return cell(is_measured ? std::to_string(rank.device_percent()) : "", true) +
         cell(is_known ? size_text(rank.device_bytes()) : "", true);
}

std::string rank_line(const ctl::RankRow& rank, std::optional<double> cpu, bool with_devices) {
  const bool known = rank.has_usage();
  char share[32] = "";
  if (cpu) std::snprintf(share, sizeof share, "%.0f", *cpu);
  const bool runs = rank.state() == "running" || rank.state() == "starting";
  const std::string kind = runs                       ? ""
                           : rank.state() == "exit 0" ? " class=\"done\""
                                                      : " class=\"bad\"";
  return "<tr" + kind + ">" + cell(std::to_string(rank.rank()), true) + cell(rank.host()) +
         cell(rank.pid() == 0 ? "" : std::to_string(rank.pid()), true) + cell(rank.state()) +
         cell(share, true) + cell(known ? size_text(rank.memory_bytes()) : "", true) +
         cell(known ? std::to_string(rank.processes()) : "", true) +
         (with_devices ? device_cells(rank) : "") +
         cell(output_age_text(rank.output_age_ms()), true) + cell(rank.operation()) + "</tr>\n";
}

std::string rank_table(const ctl::RanksDescription& before, const ctl::RanksDescription& now) {
  if (now.ranks_size() == 0) return {};
  std::map<std::uint32_t, const ctl::RankRow*> earlier;
  for (const ctl::RankRow& row : before.ranks()) earlier[row.rank()] = &row;
  const bool with_devices =
      std::any_of(now.ranks().begin(), now.ranks().end(),
                  [](const ctl::RankRow& rank) { return rank.devices() > 0; });
  std::string text =
      "<table><tr><th class=\"n\">rank</th><th>host</th><th class=\"n\">pid</th><th>state</th>"
      "<th class=\"n\">CPU %</th><th class=\"n\">memory</th><th class=\"n\">processes</th>";
  if (with_devices) text += "<th class=\"n\">GPU %</th><th class=\"n\">GPU memory</th>";
  text += "<th class=\"n\">last output</th><th>in</th></tr>\n";
  for (const ctl::RankRow& row : now.ranks()) {
    const auto found = earlier.find(row.rank());
    const auto cpu = found == earlier.end() ? std::nullopt : cpu_percent(*found->second, row);
    text += rank_line(row, cpu, with_devices);
  }
  return text + "</table>\n";
}

}  // namespace

std::string page_text(const PageInputs& inputs, const ctl::RanksDescription& before,
                      const ctl::RanksDescription& now) {
  const std::string called =
      inputs.job.name.empty() ? "job " + inputs.job.job_id.substr(0, 8) : inputs.job.name;
  std::string text(kHead);
  if (!inputs.job.exit_code)
    text += "<meta http-equiv=\"refresh\" content=\"" + std::to_string(inputs.refresh_s) + "\">\n";
  text += "<title>" + escaped(called + ": " + inputs.job.program) + "</title>\n" +
          std::string(kStyle) + "</head><body>\n<h1>" + escaped(called) + "</h1>\n<p>" +
          escaped(state_line(inputs)) + "</p>\n<p><code>" +
          escaped(quoted_arguments(inputs.command)) + "</code></p>\n" + rank_table(before, now);
  for (const std::string& line : inputs.said) text += "<p>" + escaped(line) + "</p>\n";
  if (!inputs.summary.empty()) text += "<pre>" + escaped(inputs.summary) + "</pre>\n";
  return text + "<p><small>job " + escaped(inputs.job.job_id) + "</small></p>\n</body></html>\n";
}

}  // namespace ivy
