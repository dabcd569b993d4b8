#include "launcher/job/host_failures.h"

#include <algorithm>
#include <map>

#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxGroups = 4;

struct FailureGroup {
  LinkDown down;        // The failure of the group's first host.
  std::string pattern;  // Its message without its name: what the others of the group say as well.
  std::vector<std::string> names;
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Numeric addresses differ from host to host where the trouble is the same: "10.0.0.7" and
// "(fd77::7)" are left out.
std::string without_addresses(const std::string& text) {
  std::string kept;
  std::string word;
  const auto flush = [&](const std::string& separator) {
    const auto dots = std::count(word.begin(), word.end(), '.');
    const auto colons = std::count(word.begin(), word.end(), ':');
    const bool is_address = word.find_first_not_of("0123456789abcdef.:()[]") == std::string::npos &&
                            (dots == 3 || colons >= 2);
    kept += is_address ? "its address" : word;
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

}  // namespace

std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting) {
  std::string line = "hosts " + std::to_string(up) + "/" + std::to_string(total) + " up after " +
                     std::to_string(elapsed.count()) + " s";
  std::map<std::string, std::vector<std::string>> groups;
  for (const WaitingHost& host : waiting) groups[host.doing.line()].push_back(host.name);
  std::size_t written = 0;
  for (const auto& [doing, names] : groups) {
    if (written == kMaxGroups) {
      line += ", ...";
      break;
    }
    line += written == 0 ? ", waiting for " : ", ";
    line += fold_host_names(names);
    if (!doing.empty()) line += " (" + doing + ")";
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
    diagnostic.id = "IVY-H003";
    diagnostic.what = std::to_string(group.names.size()) + " of " + std::to_string(total) +
                      (total == 1 ? " host" : " hosts") + " did not come up" + circumstance;
    diagnostic.where = names + ", " + step_of(group.down.failure);
    diagnostic.cause = group.names.size() == 1 ? group.down.message.lines()
                                               : replace_all(group.pattern, "%h", names);
    diagnostic.fix = group.down.fix;
    diagnostic.exit_code = kExitHostsNotUp;
  }
  return diagnostics;
}

}  // namespace ivy
