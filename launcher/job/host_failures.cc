// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/host_failures.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
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

// Folds the progress of several transfers, such as "sending ivy-node (42 % of 5 MiB, 1.3 MB/s)",
// into one text with the lowest and the highest percentage and the sum of the rates.
// without_figures() notes the figures of one host and returns the key of its group; with_figures()
// puts the folded figures into that key. Other texts stay as they are.
class Transfers {
 public:
  std::string without_figures(const std::string& doing) {
    const std::size_t percent = doing.find(" % of ");
    const std::size_t open = doing.rfind('(', percent);
    if (percent == std::string::npos || open == std::string::npos) return doing;
    const std::size_t comma = doing.find(", ", percent);
    const std::size_t end = std::min(comma, doing.find(')', percent));
    const std::string folded =
        doing.substr(0, open + 1) + doing.substr(percent, end - percent) + ")";
    Figures& figures = figures_[folded];
    const int done = std::atoi(doing.c_str() + open + 1);
    figures.least = std::min(figures.least, done);
    figures.most = std::max(figures.most, done);
    if (comma != std::string::npos) figures.rate += std::atof(doing.c_str() + comma + 2);
    return folded;
  }

  std::string with_figures(const std::string& folded) const {
    const auto found = figures_.find(folded);
    if (found == figures_.end()) return folded;
    const Figures& figures = found->second;
    std::string percent = std::to_string(figures.least);
    if (figures.most != figures.least) percent += "-" + std::to_string(figures.most);
    std::array<char, 32> rate{};
    if (figures.rate > 0) std::snprintf(rate.data(), rate.size(), ", %.1f MB/s", figures.rate);
    const std::size_t open = folded.find('(') + 1;
    return folded.substr(0, open) + percent + folded.substr(open, folded.size() - open - 1) +
           rate.data() + ")";
  }

 private:
  struct Figures {
    int least = 100;
    int most = 0;
    double rate = 0;
  };
  std::map<std::string, Figures> figures_;
};

}  // namespace

std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting) {
  std::string line = "hosts " + std::to_string(up) + "/" + std::to_string(total) + " up after " +
                     std::to_string(elapsed.count()) + " s";
  std::map<std::string, std::vector<std::string>> groups;
  Transfers transfers;
  for (const WaitingHost& host : waiting) {
    const std::string doing = host.doing.line();
    groups[transfers.without_figures(doing)].push_back(host.name);
  }
  std::size_t written = 0;
  for (const auto& [folded, names] : groups) {
    const std::string doing = transfers.with_figures(folded);
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
                      (total == 1 ? " host" : " hosts") + " could not be reached" + circumstance;
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
