// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/check_verdict.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

// Longer reasons are cut; the details have the rest.
constexpr std::size_t kMaxReason = 400;
// Lines of a command's output that a message shows.
constexpr std::size_t kShownLines = 10;
constexpr const char* kLeaveOut =
    "repair it, or do without it: --exclude HOST, --spares K or --nnodes MIN:MAX";

std::string seconds_text(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", static_cast<double>(time.count()) / 1e3);
  return text;
}

// Returns "12.3 G" for 1.23e10.
std::string rate_text(double rate) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (rate >= 1000 && prefix + 1 < std::size(kPrefixes)) {
    rate /= 1000;
    ++prefix;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", rate, kPrefixes[prefix]);
  return text;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string command_name(const std::string& command) {
  return "--check '" + RemoteText(command).line() + "'";
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) lines.push_back(line);
  }
  return lines;
}

// The object {"ok": bool, "reason": text} in a line of the output.
struct Report {
  bool ok = false;
  std::string reason;
};
std::optional<Report> report_in(const std::vector<std::string_view>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (!line->starts_with('{')) continue;
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(*line, error);
    const boost::json::object* const object = error ? nullptr : value.if_object();
    const boost::json::value* const ok = object != nullptr ? object->if_contains("ok") : nullptr;
    if (ok == nullptr || !ok->is_bool()) continue;
    Report report{ok->get_bool(), ""};
    if (const boost::json::value* const reason = object->if_contains("reason");
        reason != nullptr && reason->is_string())
      report.reason = std::string(reason->get_string());
    return report;
  }
  return std::nullopt;
}

RemoteText shortened(std::string_view text) {
  return std::string(text.substr(0, kMaxReason)) + (text.size() > kMaxReason ? "..." : "");
}

std::string output_size(std::uint64_t bytes) {
  return bytes < 10u << 20 ? std::to_string(bytes >> 10) + " KiB" : size_text(bytes);
}

// Returns the end of the output without its last line, which is the reason.
RemoteText details_of(const CheckedCommand& result, const std::vector<std::string_view>& lines) {
  std::string text;
  if (result.dropped_bytes() > 0)
    text = "it printed " + output_size(result.dropped_bytes() + result.output().size()) +
           ", of which the last " + output_size(result.output().size()) + " were kept";
  const std::size_t end = lines.empty() ? 0 : lines.size() - 1;
  for (std::size_t i = end > kShownLines ? end - kShownLines : 0; i < end; ++i)
    text += (text.empty() ? "" : "\n") + shortened(lines[i]).bytes();
  return text;
}

std::string exit_text(int code) {
  return code > 128 ? "killed by signal " + std::to_string(code - 128)
                    : "exit code " + std::to_string(code);
}

class Judge {
 public:
  Judge(const CheckWish& wish, const std::vector<CheckedHost>& hosts)
      : wish_(wish), hosts_(hosts) {}

  std::vector<CheckFailure> run() {
    for (const CheckedHost& host : hosts_) {
      if (host.space) judge_space(host);
      if (wish_.devices && host.devices) judge_devices(host);
      for (const CheckedCommand& result : host.commands) judge_command(host, result);
      judge_end(host);
    }
    if (wish_.load) {
      judge_arithmetic();
      judge_streams();
    }
    std::stable_sort(
        failures_.begin(), failures_.end(),
        [](const CheckFailure& one, const CheckFailure& other) { return one.host < other.host; });
    return std::move(failures_);
  }

 private:
  CheckFailure& fail(const CheckedHost& host, std::string id, std::string check, RemoteText reason,
                     std::string fix) {
    return failures_.emplace_back(CheckFailure{host.host,
                                               host.name,
                                               std::move(id),
                                               std::move(check),
                                               std::move(reason),
                                               {},
                                               std::move(fix)});
  }

  void judge_space(const CheckedHost& host) {
    for (const Finding& finding : space_failures(*host.space))
      fail(host, "IVY-H024", finding.check, finding.what, finding.fix);
  }

  void judge_devices(const CheckedHost& host) {
    if (*host.devices == static_cast<std::uint32_t>(*wish_.devices)) return;
    RemoteText reason = counted(*host.devices, "usable accelerator") + " instead of " +
                        std::to_string(*wish_.devices);
    if (!host.device_reason.empty()) reason += ": " + host.device_reason.bytes();
    fail(host, "IVY-H021", "--expect-gpus " + std::to_string(*wish_.devices), std::move(reason),
         *host.devices > static_cast<std::uint32_t>(*wish_.devices)
             ? "expect more, or hide the others: -x CUDA_VISIBLE_DEVICES=..."
             : kLeaveOut);
  }

  void judge_command(const CheckedHost& host, const CheckedCommand& result) {
    const std::string& command = wish_.commands[result.index()];
    const std::vector<std::string_view> lines = lines_of(result.output());
    const std::optional<Report> report = report_in(lines);
    if (result.was_late()) {
      RemoteText reason = "it did not finish within --check-timeout " + seconds_text(wish_.limit);
      reason += result.error().empty() ? RemoteText("; it was killed with all its children")
                                       : RemoteText("; " + result.error());
      CheckFailure& late = fail(host, "IVY-H023", command_name(command), std::move(reason),
                                "see what it waits for there, or allow more time: --check-timeout");
      if (!lines.empty()) late.details = "its last line: " + shortened(lines.back()).bytes();
      return;
    }
    if (!result.error().empty()) {
      fail(host, "IVY-H020", command_name(command), shortened(result.error()), kLeaveOut);
      return;
    }
    if (result.exit_code() == 0 && (!report || report->ok)) return;
    const bool is_missing = result.exit_code() == kExitNotFound;
    RemoteText reason;
    if (report && !report->reason.empty())
      reason = shortened(report->reason);
    else if (!lines.empty() && !report)
      reason = exit_text(result.exit_code()) + ": " + shortened(lines.back()).bytes();
    else
      reason = result.exit_code() == 0 ? "it reports \"ok\": false" : exit_text(result.exit_code());
    CheckFailure& failure = fail(
        host, "IVY-H020", command_name(command), std::move(reason),
        is_missing ? "install it there, or write the path that it has on all hosts" : kLeaveOut);
    failure.details = details_of(result, lines);
  }

  // The checks did not reach their end on this host.
  void judge_end(const CheckedHost& host) {
    if (!host.breakdown.empty()) {
      fail(host, "IVY-H024", "the checks", host.breakdown, kLeaveOut);
      return;
    }
    if (!host.is_late) return;
    RemoteText reason = "they did not finish within --check-timeout " + seconds_text(wish_.limit);
    reason += host.doing.empty() ? RemoteText("; the host has not begun")
                                 : "; it still waits for " + host.doing;
    fail(host, "IVY-H023", "the checks", std::move(reason),
         "see what hangs there (ps -eo pid,stat,wchan,args), or allow more time: --check-timeout");
  }

  void judge_arithmetic() {
    std::vector<double> speeds;
    for (const CheckedHost& host : hosts_)
      if (host.operations_per_s > 0) speeds.push_back(host.operations_per_s);
    if (speeds.size() < 2) return;
    const double median = median_of(speeds);
    for (const CheckedHost& host : hosts_)
      if (host.operations_per_s > 0 && host.operations_per_s < kSlowHost * median)
        slow(host, "arithmetic: ", host.operations_per_s, median, "operations/s", speeds.size(),
             "see what else runs there, and its clock rates (top, cpupower frequency-info)");
  }

  void judge_streams() {
    std::vector<double> speeds;
    for (const CheckedHost& host : hosts_)
      if (host.stream_per_s) speeds.push_back(*host.stream_per_s);
    if (speeds.size() < 2) return;
    const double median = median_of(speeds);
    for (const CheckedHost& host : hosts_) {
      if (!host.stream_per_s) continue;
      if (*host.stream_per_s == 0) {
        RemoteText reason = "no stream to or from this host arrived";
        if (!host.stream_error.empty()) reason += ": " + host.stream_error.bytes();
        fail(host, "IVY-H022", "--check-load", std::move(reason),
             "open the firewall between the hosts, or choose open ports: --port-range A-B");
      } else if (*host.stream_per_s < kSlowHost * median) {
        slow(host, "network: ", *host.stream_per_s, median, "B/s", speeds.size(),
             "see its link and its errors (ethtool, ip -s link)");
      }
    }
  }

  void slow(const CheckedHost& host, const std::string& subject, double speed, double median,
            const std::string& unit, std::size_t hosts, std::string fix) {
    char share[32];
    std::snprintf(share, sizeof share, "%.2f", speed / median);
    char bound[32];
    std::snprintf(bound, sizeof bound, "%.1f", kSlowHost);
    fail(host, "IVY-H022", "--check-load",
         subject + rate_text(speed) + unit + ", " + share + " x the median of " +
             counted(hosts, "host") + ", " + rate_text(median) + unit + " (the bound is " + bound +
             " x)",
         std::move(fix));
  }

  const CheckWish& wish_;
  const std::vector<CheckedHost>& hosts_;
  std::vector<CheckFailure> failures_;
};

// Groups the failures that differ in the host only.
std::vector<std::pair<CheckFailure, std::vector<std::string>>> grouped(
    const std::vector<CheckFailure>& failures) {
  std::vector<std::pair<CheckFailure, std::vector<std::string>>> groups;
  for (const CheckFailure& failure : failures) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.first.id == failure.id && group.first.check == failure.check &&
             group.first.reason == failure.reason;
    });
    if (same == groups.end())
      groups.push_back({failure, {failure.name}});
    else
      same->second.push_back(failure.name);
  }
  return groups;
}

std::string fix_for(const CheckFailure& failure, const std::vector<std::string>& hosts) {
  constexpr std::string_view kPlaceholder = "HOST,";
  std::string fix = failure.fix;
  if (const std::size_t at = fix.find(kPlaceholder); at != std::string::npos)
    fix.replace(at, kPlaceholder.size(), fold_host_names(hosts) + ",");
  return fix;
}

}  // namespace

std::vector<CheckFailure> judge_checks(const CheckWish& wish,
                                       const std::vector<CheckedHost>& hosts) {
  return Judge(wish, hosts).run();
}

std::vector<Diagnostic> check_diagnostics(const std::vector<CheckFailure>& failures,
                                          const std::string& when) {
  std::vector<Diagnostic> diagnostics;
  for (const auto& [failure, hosts] : grouped(failures)) {
    Diagnostic& diagnostic = diagnostics.emplace_back();
    diagnostic.id = failure.id;
    diagnostic.where = fold_host_names(hosts);
    diagnostic.what = (hosts.size() == 1 ? "host " : "hosts ") + diagnostic.where +
                      " failed a check " + when + ": " + failure.check;
    diagnostic.cause = failure.reason.line();
    if (!failure.details.empty())
      diagnostic.cause +=
          (hosts.size() == 1 ? "\n" : "\non " + hosts.front() + ":\n") + failure.details.lines();
    diagnostic.fix = fix_for(failure, hosts);
    diagnostic.exit_code = kExitRejected;
  }
  return diagnostics;
}

std::vector<Finding> check_findings(const std::vector<CheckFailure>& failures) {
  std::vector<Finding> findings;
  for (const auto& [failure, hosts] : grouped(failures))
    findings.push_back({true, "check", failure.check + ": " + failure.reason.line(),
                        fix_for(failure, hosts), hosts});
  return findings;
}

std::vector<std::string> load_lines(const std::vector<CheckedHost>& hosts) {
  std::vector<std::string> lines;
  for (const CheckedHost& host : hosts) {
    std::string figures;
    if (host.operations_per_s > 0) figures = rate_text(host.operations_per_s) + "operations/s";
    if (host.stream_per_s)
      figures += (figures.empty() ? "" : ", ") + rate_text(*host.stream_per_s) + "B/s";
    if (!figures.empty()) lines.push_back(host.name + ": " + figures);
  }
  return lines;
}

std::vector<std::string> check_names(const CheckWish& wish) {
  std::vector<std::string> names{"free space in the working directory and in /dev/shm"};
  if (wish.devices) names.push_back("--expect-gpus " + std::to_string(*wish.devices));
  for (const std::string& command : wish.commands) names.push_back(command_name(command));
  if (wish.load)
    names.push_back("--check-load (arithmetic for 2 s, and streams between the hosts)");
  return names;
}

}  // namespace ivy
