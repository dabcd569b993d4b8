// SPDX-License-Identifier: Apache-2.0
#include "launcher/drill/drill_schedule.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kShownFaults = 10;

bool faults_network(Fault fault) { return fault == Fault::kCut || fault == Fault::kSlow; }

bool is_listed(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the hosts that the rule names, as indices in the world.
std::vector<std::size_t> host_candidates(const DrillRule& rule, const DrillWorld& world) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < world.hosts.size(); ++i)
    if (rule.hosts != DrillRule::Pick::kListed || is_listed(rule.listed_hosts, world.hosts[i].name))
      found.push_back(i);
  if (rule.hosts == DrillRule::Pick::kFirst && found.size() > 1) found.resize(1);
  return found;
}

// Reduces the candidates to those that are hit.
template <class T>
void choose(std::vector<T>& candidates, bool all, std::uint64_t draw) {
  if (candidates.empty() || all) return;
  candidates = {candidates[static_cast<std::size_t>(draw % candidates.size())]};
}

std::string seconds_at(milliseconds at) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(at.count()) / 1e3);
  return text;
}

}  // namespace

DrillSchedule::DrillSchedule(const std::vector<DrillRule>& rules) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    Line& line = lines_.emplace_back();
    line.rule = rules[i];
    line.random.seed(rules[i].seed + i);
    line.due.rule = i;
    line.due.at = rules[i].after;
    draw(line);
  }
}

void DrillSchedule::draw(Line& line) const {
  const std::uint64_t kind = line.random();
  line.due.fault = line.rule.faults[static_cast<std::size_t>(kind % line.rule.faults.size())];
  line.due.draw = line.random();
}

std::optional<std::size_t> DrillSchedule::first() const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    if (line.rule.times != 0 && line.taken >= line.rule.times) continue;
    if (!found || line.due.at < lines_[*found].due.at) found = i;
  }
  return found;
}

std::optional<DueFault> DrillSchedule::next() const {
  const std::optional<std::size_t> line = first();
  return line ? std::optional<DueFault>(lines_[*line].due) : std::nullopt;
}

void DrillSchedule::take(milliseconds at) {
  const std::optional<std::size_t> found = first();
  if (!found) return;
  Line& line = lines_[*found];
  ++line.taken;
  line.due.at = at + line.rule.every;
  draw(line);
}

DrillTarget pick_target(const DrillRule& rule, Fault fault, std::uint64_t draw,
                        const DrillWorld& world) {
  DrillTarget target;
  target.hosts = host_candidates(rule, world);
  if (!hits_ranks(fault)) {
    if (faults_network(fault))
      std::erase_if(target.hosts, [&](std::size_t i) { return world.hosts[i].shares_network; });
    choose(target.hosts, rule.hosts == DrillRule::Pick::kAll, draw);
    return target;
  }
  for (const DrillWorld::Rank& rank : world.ranks) {
    const bool is_wanted = rule.ranks != DrillRule::Pick::kListed ||
                           std::find(rule.listed_ranks.begin(), rule.listed_ranks.end(),
                                     rank.rank) != rule.listed_ranks.end();
    const bool is_here =
        std::find(target.hosts.begin(), target.hosts.end(), rank.host) != target.hosts.end();
    if (is_wanted && is_here) target.ranks.push_back(rank);
  }
  if (rule.ranks == DrillRule::Pick::kFirst && target.ranks.size() > 1) target.ranks.resize(1);
  choose(target.ranks, rule.ranks == DrillRule::Pick::kAll, draw);
  target.hosts.clear();
  for (const DrillWorld::Rank& rank : target.ranks)
    if (target.hosts.empty() || target.hosts.back() != rank.host) target.hosts.push_back(rank.host);
  return target;
}

std::string target_text(const DrillTarget& target, const DrillWorld& world) {
  std::vector<std::string> hosts;
  for (const std::size_t host : target.hosts) hosts.push_back(world.hosts[host].name);
  if (target.ranks.empty()) return fold_host_names(hosts);
  std::vector<int> ranks;
  for (const DrillWorld::Rank& rank : target.ranks) ranks.push_back(rank.rank);
  return named_ranks(ranks) + (hosts.size() == 1 ? " (" + hosts.front() + ")" : "");
}

Result<void> check_targets(const DrillRule& rule, const DrillWorld& world) {
  for (const int rank : rule.listed_ranks)
    if (std::none_of(world.ranks.begin(), world.ranks.end(),
                     [rank](const DrillWorld::Rank& known) { return known.rank == rank; }))
      return drill_error(rule.ranks_column,
                         "there is no rank " + std::to_string(rank) + ": the job has " +
                             counted(world.ranks.size(), "rank"),
                         "ranks=any, or ranks from 0 to " + std::to_string(world.ranks.size() - 1));
  std::vector<std::string> names;
  for (const DrillWorld::Host& host : world.hosts) names.push_back(host.name);
  for (const std::string& name : rule.listed_hosts)
    if (!is_listed(names, name))
      return drill_error(rule.hosts_column, "the job has no host \"" + name + "\"",
                         "its hosts are " + fold_host_names(names));
  for (const Fault fault : rule.faults) {
    if (!pick_target(rule, fault, 0, world).empty()) continue;
    if (hits_ranks(fault))
      return drill_error(rule.ranks_column, "no rank runs on these hosts", "leave hosts= out");
    return drill_error(rule.hosts_column,
                       std::string(fault_name(fault)) +
                           " needs another machine: the network of ivyrun's own machine and of "
                           "simulated hosts stays as it is",
                       "start ivyrun on a host that is not drilled");
  }
  return {};
}

std::vector<std::string> drill_plan_lines(const std::vector<DrillRule>& rules,
                                          const DrillWorld& world) {
  DrillSchedule schedule(rules);
  std::vector<TextRow> rows;
  bool has_more = false;
  while (const std::optional<DueFault> due = schedule.next()) {
    has_more = rows.size() == kShownFaults;
    if (has_more) break;
    const DrillTarget target = pick_target(rules[due->rule], due->fault, due->draw, world);
    rows.push_back({seconds_at(due->at), std::string(fault_name(due->fault)),
                    target_text(target, world),
                    has_duration(due->fault) ? "for " + seconds_at(rules[due->rule].lasts) : ""});
    schedule.take(due->at);
  }
  std::vector<std::string> lines;
  if (rows.empty()) return lines;
  const std::string table = text_columns(rows);
  std::string_view rest = table;
  while (!rest.empty()) lines.emplace_back(take_part(rest, '\n'));
  if (has_more) lines.emplace_back("  and so on until the job ends");
  return lines;
}

}  // namespace ivy
