// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/drill_rule.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "launcher/options/option_values.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

struct FaultRow {
  Fault fault;
  std::string_view name;
  bool hits_ranks;
  bool has_duration;
  bool is_host_task;
};
constexpr FaultRow kFaults[] = {
    {Fault::kKill, "kill", true, false, false},
    {Fault::kStop, "stop", true, true, false},
    {Fault::kSegfault, "segfault", true, false, false},
    {Fault::kHoldGil, "hold-gil", true, true, false},
    {Fault::kCut, "cut", false, true, true},
    {Fault::kSlow, "slow", false, true, true},
    {Fault::kFullDisk, "full-disk", false, true, true},
    {Fault::kKillSupervisor, "kill-supervisor", false, false, true},
    {Fault::kNotice, "notice", false, false, false},
    {Fault::kDrain, "drain", false, false, false},
};

constexpr std::string_view kDrillKeys[] = {"every",    "after", "times", "for",  "ranks", "hosts",
                                           "deadline", "seed",  "path",  "size", "rate",  "delay"};

// Shorter than the pause before a restart, so that a drill can also hit a job that starts again.
constexpr milliseconds kShortestPeriod{100};
// An undo that is this late is no drill any longer.
constexpr milliseconds kLongestFault{3'600'000};

const FaultRow& fault_row(Fault fault) {
  return *std::find_if(std::begin(kFaults), std::end(kFaults),
                       [fault](const FaultRow& row) { return row.fault == fault; });
}

std::string fault_names() {
  std::string names;
  for (const FaultRow& row : kFaults) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

template <class T>
Result<void> store_at(const TextPiece& value, T& target, Result<T> parsed) {
  if (!parsed.ok()) return drill_error(value.column, parsed.error().message, parsed.error().fix);
  target = std::move(parsed).value();
  return {};
}

Result<void> take_duration(const TextPiece& value, milliseconds& target, milliseconds shortest) {
  IVY_CHECK(store_at(value, target, parse_duration(value.text)));
  if (target >= shortest) return {};
  return drill_error(value.column, in_quotes(value.text) + " is too short: at least " +
                                       std::to_string(shortest.count()) + " ms");
}

Result<void> take_number(const TextPiece& value, std::uint64_t& target) {
  if (read_number(value.text, target)) return {};
  return drill_error(value.column, in_quotes(value.text) + " is not a number");
}

// Sets `pick` if the value is a word. Returns false if it is a list.
bool take_pick_word(const TextPiece& value, DrillRule::Pick& pick) {
  pick = DrillRule::Pick::kListed;
  if (value.text == "any") pick = DrillRule::Pick::kAny;
  if (value.text == "first") pick = DrillRule::Pick::kFirst;
  if (value.text == "all") pick = DrillRule::Pick::kAll;
  return pick != DrillRule::Pick::kListed;
}

Result<void> take_ranks(const TextPiece& value, DrillRule& rule) {
  rule.ranks_column = value.column;
  rule.listed_ranks.clear();
  if (take_pick_word(value, rule.ranks)) return {};
  for (const TextPiece& part : cut_at_commas(value, /*outside_brackets=*/false)) {
    const std::size_t dash = part.text.find('-');
    const std::optional<int> low = to_number<int>(part.text.substr(0, dash));
    const std::optional<int> high =
        dash == std::string_view::npos ? low : to_number<int>(part.text.substr(dash + 1));
    if (!low || !high || *low < 0 || *high < *low || *high >= kMaxWorkers)
      return drill_error(part.column, in_quotes(part.text) + " is not a rank or a range of ranks",
                         "any, first, all, or a list such as 0,4-7");
    for (int rank = *low; rank <= *high; ++rank) rule.listed_ranks.push_back(rank);
  }
  return {};
}

Result<void> take_hosts(const TextPiece& value, DrillRule& rule) {
  rule.hosts_column = value.column;
  rule.listed_hosts.clear();
  if (take_pick_word(value, rule.hosts)) return {};
  for (const TextPiece& part : cut_at_commas(value, /*outside_brackets=*/true)) {
    const std::optional<RangeFault> fault =
        expand_host_ranges(part, BracketOrder::kLastToFirst, rule.listed_hosts);
    if (fault) return drill_error(fault->column, fault->what, "any, first, all, or node[01-02]");
  }
  return {};
}

// tc(8) knows more units; these cannot be mistaken for others.
Result<void> take_rate(const TextPiece& value, DrillRule& rule) {
  const std::size_t digits = value.text.find_first_not_of("0123456789");
  const std::string_view unit = digits == std::string_view::npos ? "" : value.text.substr(digits);
  if (digits == 0 || value.text.front() == '0' ||
      (unit != "kbit" && unit != "mbit" && unit != "gbit"))
    return drill_error(value.column, in_quotes(value.text) + " is not a rate",
                       "a number and kbit, mbit or gbit: rate=10mbit");
  rule.rate = value.text;
  return {};
}

Result<void> take_key(std::string_view key, const TextPiece& at, const TextPiece& value,
                      DrillRule& rule, bool& has_after) {
  if (value.text.empty()) return drill_error(at.column, std::string(key) + "= has no value");
  if (key == "every") return take_duration(value, rule.every, kShortestPeriod);
  if (key == "after") {
    has_after = true;
    return take_duration(value, rule.after, milliseconds(0));
  }
  if (key == "for") {
    IVY_CHECK(take_duration(value, rule.lasts, milliseconds(1)));
    if (rule.lasts <= kLongestFault) return {};
    return drill_error(value.column, in_quotes(value.text) + " is longer than an hour");
  }
  if (key == "deadline") return take_duration(value, rule.deadline, milliseconds(1));
  if (key == "delay") return take_duration(value, rule.delay, milliseconds(1));
  if (key == "times") return take_number(value, rule.times);
  if (key == "seed") return take_number(value, rule.seed);
  if (key == "size") return store_at(value, rule.size, parse_size(value.text));
  if (key == "rate") return take_rate(value, rule);
  if (key == "ranks") return take_ranks(value, rule);
  if (key == "hosts") return take_hosts(value, rule);
  if (key == "path") {
    if (value.text.front() != '/')
      return drill_error(value.column, in_quotes(value.text) + " is not an absolute path");
    rule.path = value.text;
    return {};
  }
  const std::string nearest = nearest_word(key, kDrillKeys);
  return drill_error(at.column, in_quotes(key) + " is not a key of a drill",
                     nearest.empty() ? "the keys are " + joined(kDrillKeys, ", ")
                                     : "did you mean " + nearest + "=?");
}

Result<void> take_faults(const TextPiece& word, DrillRule& rule) {
  for (const TextPiece& part : cut_at_commas(word, /*outside_brackets=*/false)) {
    const auto found = std::find_if(std::begin(kFaults), std::end(kFaults),
                                    [&part](const FaultRow& row) { return row.name == part.text; });
    if (found == std::end(kFaults))
      return drill_error(part.column, in_quotes(part.text) + " is not a fault",
                         "the faults are " + fault_names());
    rule.faults.push_back(found->fault);
  }
  return {};
}

// Rejects a key that no fault of the rule reads, and a fault that lacks one.
Result<void> check_drill(const DrillRule& rule) {
  if (rule.has(Fault::kFullDisk) && rule.path.empty())
    return drill_error(1, "full-disk needs path=DIR, a directory on the file system to fill",
                       "path=/scratch/run size=2G");
  if (rule.has(Fault::kSlow) && rule.rate.empty() && rule.delay.count() == 0)
    return drill_error(1, "slow needs rate= or delay=", "rate=10mbit, or delay=50ms");
  const auto ranks = std::count_if(rule.faults.begin(), rule.faults.end(), hits_ranks);
  if (ranks == 0 && rule.ranks != DrillRule::Pick::kAny)
    return drill_error(rule.ranks_column,
                       "ranks= is for faults of ranks, and " +
                           std::string(fault_name(rule.faults.front())) + " is one of a host",
                       "use hosts=");
  return {};
}

}  // namespace

std::string_view fault_name(Fault fault) { return fault_row(fault).name; }
bool hits_ranks(Fault fault) { return fault_row(fault).hits_ranks; }
bool has_duration(Fault fault) { return fault_row(fault).has_duration; }
bool is_host_task(Fault fault) { return fault_row(fault).is_host_task; }

bool DrillRule::has(Fault fault) const {
  return std::find(faults.begin(), faults.end(), fault) != faults.end();
}

Error drill_error(std::size_t column, const std::string& what, const std::string& fix) {
  return usage_error("column " + std::to_string(column) + ": " + what, fix);
}

Result<DrillRule> parse_drill(const std::string& text) {
  DrillRule rule;
  rule.text = text;
  bool has_after = false;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t begin = text.find_first_not_of(" \t", from);
    if (begin == std::string::npos) break;
    const std::size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    from = end;
    const TextPiece word{std::string_view(text).substr(begin, end - begin), begin + 1};
    const std::size_t equals = word.text.find('=');
    if (equals == std::string_view::npos && rule.faults.empty()) {
      IVY_CHECK(take_faults(word, rule));
      continue;
    }
    if (equals == std::string_view::npos)
      return drill_error(word.column, in_quotes(word.text) + " is not KEY=VALUE",
                         "several faults are separated by commas: kill,stop");
    if (rule.faults.empty())
      return drill_error(word.column, "a drill starts with its fault", "'kill every=15s'");
    IVY_CHECK(take_key(word.text.substr(0, equals), word, word.sub(equals + 1), rule, has_after));
  }
  if (rule.faults.empty())
    return drill_error(1, "there is no fault", "'kill every=15s'; the faults are " + fault_names());
  if (!has_after) rule.after = rule.every;
  IVY_CHECK(check_drill(rule));
  return rule;
}

}  // namespace ivy
