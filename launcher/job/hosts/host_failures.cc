// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/host_failures.h"

#include <algorithm>
#include <map>

#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxGroups = 4;  // Entries of waiting_line().

struct FailureGroup {
  LinkDown down;        // The failure of the group's first host.
  std::string pattern;  // The group's key: that message without the host's name and addresses.
  std::vector<std::string> names;
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Replaces numeric addresses, such as "10.0.0.7" and "(fd77::7)": they differ between hosts that
// failed for the same reason.
std::string without_addresses(const std::string& text) {
  std::string kept;
  std::string word;
  const auto flush = [&](const std::string& separator) {
    const auto dots = std::count(word.begin(), word.end(), '.');
    const auto colons = std::count(word.begin(), word.end(), ':');
    const bool is_address = word.find_first_not_of("0123456789abcdef.:()[]") == std::string::npos &&
                            (dots == 3 || colons >= 2);
    kept += is_address ? "%a" : word;
    kept += separator;
    word.clear();
  };
  for (const char c : text) {
    if (c == ' ' || c == '\n' || c == ',') {
      flush(std::string(1, c));
    } else {
      word += c;
    }
  }
  flush("");
  return kept;
}

std::vector<FailureGroup> group_by_cause(const std::vector<FailedHost>& failed) {
  std::vector<FailureGroup> groups;
  for (const FailedHost& host : failed) {
    const std::string pattern =
        without_addresses(replace_all(host.down.message.lines(), host.name, "%h"));
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const FailureGroup& group) {
      return group.pattern == pattern && group.down.failure == host.down.failure;
    });
    if (same != groups.end()) {
      same->names.push_back(host.name);
    } else {
      groups.push_back(FailureGroup{host.down, pattern, {host.name}});
    }
  }
  return groups;
}

// Hosts at the same step.
struct StepGroup {
  LinkStep step;  // The step of its first host.
  std::vector<std::string> names;
  int min_percent = 100;
  int max_percent = 0;
  double mb_per_s = 0;  // The sum of the hosts' rates.
};

void add_host(const WaitingHost& host, StepGroup& group) {
  group.step = host.doing;
  group.names.push_back(host.name);
  if (!host.doing.upload) return;
  const UploadState& upload = *host.doing.upload;
  group.min_percent = std::min(group.min_percent, upload.percent);
  group.max_percent = std::max(group.max_percent, upload.percent);
  group.mb_per_s += upload.mb_per_s;
}

// Returns " (ssh: connecting)", or " (sending ivy-node (7-50 % of 5 MiB, 1.8 MB/s))"; may be empty.
std::string step_text(const StepGroup& group) {
  if (group.step.empty()) return "";
  std::string text = group.step.text.line();
  if (group.step.upload) {
    std::string percent = std::to_string(group.min_percent);
    if (group.max_percent != group.min_percent) percent += "-" + std::to_string(group.max_percent);
    text += " (" + upload_text(percent, group.step.upload->total, group.mb_per_s) + ")";
  }
  return " (" + text + ")";
}

}  // namespace

std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting) {
  std::string line = "hosts " + std::to_string(up) + "/" + std::to_string(total) + " up after " +
                     std::to_string(elapsed.count()) + " s";
  std::map<std::string, StepGroup> groups;
  for (const WaitingHost& host : waiting) {
    const std::string total = host.doing.upload ? " of " + host.doing.upload->total : "";
    add_host(host, groups[host.doing.text.line() + total]);
  }
  std::size_t written = 0;
  for (const auto& [key, group] : groups) {
    if (written == kMaxGroups) {
      line += ", ...";
      break;
    }
    line += written == 0 ? ", waiting for " : ", ";
    line += fold_host_names(group.names) + step_text(group);
    ++written;
  }
  return line;
}

std::string step_of(LinkFailure failure) {
  switch (failure) {
    case LinkFailure::kUnresolved:
      return "name lookup";
    case LinkFailure::kUnreachable:
    case LinkFailure::kRefused:
      return "connecting";
    case LinkFailure::kHostKey:
      return "checking the host key";
    case LinkFailure::kAuthentication:
      return "logging in";
    case LinkFailure::kBootstrap:
    case LinkFailure::kBroken:
      return "starting the supervisor";
    case LinkFailure::kStaging:
      return "staging files";
    case LinkFailure::kNoSuchJob:
      return "finding the job again";
  }
  return "";
}

std::vector<Diagnostic> host_failures(const std::vector<FailedHost>& failed, std::size_t total,
                                      const std::string& circumstance) {
  std::vector<Diagnostic> diagnostics;
  for (const FailureGroup& group : group_by_cause(failed)) {
    const std::string names = fold_host_names(group.names);
    Diagnostic& diagnostic = diagnostics.emplace_back();
    const bool is_staging = group.down.failure == LinkFailure::kStaging;
    diagnostic.id = is_staging ? "IVY-H014" : "IVY-H003";
    diagnostic.what = std::to_string(group.names.size()) + " of " + std::to_string(total) +
                      (total == 1 ? " host" : " hosts") +
                      (is_staging ? " did not get the files of --stage" : " could not be reached") +
                      circumstance;
    diagnostic.where = names + ", " + step_of(group.down.failure);
    // The first host's message is the example for all of them.
    diagnostic.cause = group.down.message.lines();
    const std::string& first = group.names.front();
    if (group.names.size() > 1 && diagnostic.cause.find(first) == std::string::npos)
      diagnostic.cause = first + ": " + diagnostic.cause;
    diagnostic.fix = group.down.fix;
    diagnostic.exit_code = kExitHostsNotUp;
  }
  return diagnostics;
}

}  // namespace ivy
