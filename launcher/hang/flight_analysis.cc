// SPDX-License-Identifier: Apache-2.0
// A flight record lists the last collectives of one rank. groups_of() sorts the records of all
// ranks by process group, and find_stuck_collective() finds a group's oldest collective in which a
// member waits, and the members that have not reached it. The result is described as a mismatch
// (mismatch_line()) or with the absent ranks (stuck_line()).
#include "launcher/hang/flight_analysis.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "launcher/report/folded_ranks.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxLines = 16;
constexpr std::int64_t kSecond = 1'000'000'000;

// The progress of one rank in one group.
struct RankProgress {
  const FlightEntry* last = nullptr;  // The newest recorded collective.
  // Sequence number of the newest collective that the rank has entered, recorded or not.
  std::int64_t reached = 0;
  const FlightEntry* waiting = nullptr;  // The oldest unfinished collective.
  std::map<std::int64_t, const FlightEntry*> entries;
};
using FlightGroup = std::map<std::uint32_t, RankProgress>;

std::string quoted(const FlightEntry& entry) {
  const bool has_text = !entry.group_text.empty() && entry.group_text != "undefined";
  return "\"" + (has_text ? entry.group_text : entry.group) + "\"";
}

// Returns " ([[1000]] Float, at train.py:41)".
std::string details(const FlightEntry& entry) {
  std::string text = entry.sizes;
  if (!entry.types.empty()) text += (text.empty() ? "" : " ") + entry.types;
  if (!entry.source_line.empty()) text += (text.empty() ? "at " : ", at ") + entry.source_line;
  return text.empty() ? "" : " (" + text + ")";
}

std::string named(const FlightEntry& entry) {
  return entry.operation + " #" + std::to_string(entry.sequence);
}

std::string since(std::int64_t from_ns, std::int64_t now_ns) {
  if (from_ns <= 0 || from_ns > now_ns) return "";
  return " for " + std::to_string((now_ns - from_ns) / kSecond) + " s";
}

bool is_default(const FlightEntry& entry) {
  return entry.group_text == "default_pg" || entry.group == "0";
}

// Returns true for operations whose sizes must be equal on all ranks. With the others (scatter,
// gather, broadcast of lists) ranks may pass different sizes.
bool must_have_equal_sizes(const std::string& operation) {
  return operation.starts_with("all_reduce") || operation.starts_with("allreduce") ||
         operation.starts_with("_all_gather_base") || operation.starts_with("all_gather_into") ||
         operation.starts_with("_reduce_scatter_base") || operation == "broadcast" ||
         operation == "reduce";
}

std::string meaning(const FlightEntry& entry) {
  const bool sizes = must_have_equal_sizes(entry.operation);
  return entry.operation + (sizes ? "|" + entry.sizes + "|" + entry.types : "");
}

// Describes ranks whose collective at `sequence` differs from the others'.
std::string mismatch_line(const FlightGroup& group, std::int64_t sequence) {
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> sides;
  std::vector<const FlightEntry*> firsts;
  for (const auto& [rank, progress] : group) {
    const auto at = progress.entries.find(sequence);
    if (at == progress.entries.end()) continue;
    const std::string means = meaning(*at->second);
    auto side = std::find_if(sides.begin(), sides.end(),
                             [&means](const auto& other) { return other.first == means; });
    if (side == sides.end()) {
      sides.emplace_back(means, std::vector<std::uint32_t>{rank});
      firsts.push_back(at->second);
    } else {
      side->second.push_back(rank);
    }
  }
  if (sides.size() < 2) return "";
  std::string text = "ranks differ at collective #" + std::to_string(sequence) + " of " +
                     quoted(*firsts.front()) + ": ";
  for (std::size_t i = 0; i < sides.size(); ++i)
    text += (i == 0 ? "" : "; ") + named_ranks(sides[i].second) +
            (sides[i].second.size() == 1 ? " is in " : " are in ") + firsts[i]->operation +
            details(*firsts[i]);
  return text;
}

struct StuckCollective {
  const FlightEntry* entry = nullptr;  // The oldest collective in which a rank waits.
  std::vector<std::uint32_t> waiting;
  std::vector<std::uint32_t> absent;
  std::int64_t since_ns = 0;
};

std::optional<StuckCollective> find_stuck_collective(const FlightGroup& group) {
  StuckCollective stuck;
  for (const auto& [rank, progress] : group) {
    if (progress.waiting == nullptr) continue;
    if (stuck.entry == nullptr || progress.waiting->sequence < stuck.entry->sequence)
      stuck.entry = progress.waiting;
  }
  if (stuck.entry == nullptr) return std::nullopt;
  for (const auto& [rank, progress] : group) {
    if (progress.reached < stuck.entry->sequence) {
      stuck.absent.push_back(rank);
    } else if (progress.waiting != nullptr && progress.waiting->sequence == stuck.entry->sequence) {
      stuck.waiting.push_back(rank);
      // Counts from the arrival of the last waiting rank: until then, it delayed the others, too.
      stuck.since_ns = std::max(stuck.since_ns, progress.waiting->created_unix_ns);
    }
  }
  return stuck;
}

// Returns the last operation of the absent ranks, if it is the same for all.
std::string last_of_absent(const FlightGroup& group, const std::vector<std::uint32_t>& absent,
                           std::int64_t now_ns) {
  const RankProgress& first = group.at(absent.front());
  bool has_entry = true;
  for (const std::uint32_t rank : absent) {
    const RankProgress& progress = group.at(rank);
    if (progress.reached != first.reached) return "";
    has_entry &= progress.last != nullptr && progress.last->sequence == progress.reached &&
                 first.last != nullptr && progress.last->operation == first.last->operation;
  }
  if (first.reached == 0) return "";
  if (!has_entry) return " (last entered #" + std::to_string(first.reached) + ")";
  const std::int64_t entered_ns = first.last->created_unix_ns;
  const bool has_age = entered_ns > 0 && entered_ns <= now_ns;
  return " (last entered " + named(*first.last) +
         (has_age ? " " + std::to_string((now_ns - entered_ns) / kSecond) + " s ago" : "") + ")";
}

struct When {
  std::int64_t now_ns = 0;
  bool all_are_known = true;  // No rank's record is missing.
};

std::string stuck_line(const FlightGroup& group, const StuckCollective& stuck, const When& when) {
  const FlightEntry& entry = *stuck.entry;
  const std::string what = named(entry) + " of " + quoted(entry);
  const bool is_one = stuck.waiting.size() == 1;
  const std::string waiters = named_ranks(stuck.waiting) + (is_one ? " waits" : " wait");
  const std::string time = since(stuck.since_ns, when.now_ns);
  if (stuck.absent.empty())
    return named_ranks(stuck.waiting) + (is_one ? " is in " : " are in ") + what + details(entry) +
           time + ", and all ranks " + (when.all_are_known ? "" : "with a flight record ") +
           "have entered it";
  return named_ranks(stuck.absent) + " did not enter " + what +
         last_of_absent(group, stuck.absent, when.now_ns) + "; " + waiters + " in it" +
         details(entry) + time;
}

void add_point_to_point(const RankFlight& flight, std::int64_t now_ns,
                        std::vector<std::string>& lines) {
  for (const FlightEntry& entry : flight.record.entries) {
    if (!entry.is_point_to_point || entry.is_over) continue;
    lines.push_back("rank " + std::to_string(flight.rank) + " is in " + entry.operation + " of " +
                    quoted(entry) + details(entry) + since(entry.created_unix_ns, now_ns));
    return;
  }
}

// Groups with the same name are different groups if their backends differ: "cpu:gloo,cuda:nccl".
using GroupKey = std::pair<std::string, std::string>;

void add_entry(const FlightEntry& entry, RankProgress& progress) {
  progress.entries[entry.sequence] = &entry;
  if (progress.last == nullptr || entry.sequence >= progress.last->sequence) progress.last = &entry;
  progress.reached = std::max(progress.reached, entry.sequence);
  const bool is_older = progress.waiting == nullptr || entry.sequence < progress.waiting->sequence;
  if (!entry.is_over && is_older) progress.waiting = &entry;
}

// Adds members that have entered nothing: in the default group all ranks, in other groups those
// that a record names.
void add_members(const std::vector<RankFlight>& flights, const GroupKey& key, bool is_default_group,
                 FlightGroup& group) {
  std::set<std::uint32_t> members;
  for (const RankFlight& flight : flights)
    if (const auto named = flight.record.members.find(key.second);
        named != flight.record.members.end())
      members.insert(named->second.begin(), named->second.end());
  for (const RankFlight& flight : flights) {
    if (!is_default_group && !members.contains(flight.rank)) continue;
    RankProgress& progress = group[flight.rank];
    const auto last = flight.record.last_of_default.find(key.first);
    if (is_default_group && last != flight.record.last_of_default.end())
      progress.reached = std::max(progress.reached, last->second);
  }
}

std::map<GroupKey, FlightGroup> groups_of(const std::vector<RankFlight>& flights) {
  std::map<GroupKey, FlightGroup> groups;
  std::set<GroupKey> defaults;
  for (const RankFlight& flight : flights)
    for (const FlightEntry& entry : flight.record.entries) {
      if (entry.is_point_to_point) continue;
      const GroupKey key{entry.backend, entry.group};
      if (is_default(entry)) defaults.insert(key);
      add_entry(entry, groups[key][flight.rank]);
    }
  for (auto& [key, group] : groups) add_members(flights, key, defaults.contains(key), group);
  return groups;
}

}  // namespace

std::vector<std::string> flight_lines(const std::vector<RankFlight>& flights, std::uint32_t world,
                                      std::int64_t now_unix_ns) {
  std::vector<std::string> lines;
  std::set<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < world; ++rank) missing.insert(rank);
  for (const RankFlight& flight : flights) missing.erase(flight.rank);
  for (const auto& [name, group] : groups_of(flights)) {
    if (lines.size() >= kMaxLines) break;
    const std::optional<StuckCollective> stuck = find_stuck_collective(group);
    if (!stuck) continue;
    const std::string mismatch = mismatch_line(group, stuck->entry->sequence);
    lines.push_back(mismatch.empty() ? stuck_line(group, *stuck, {now_unix_ns, missing.empty()})
                                     : mismatch);
  }
  for (const RankFlight& flight : flights)
    if (lines.size() < kMaxLines) add_point_to_point(flight, now_unix_ns, lines);
  if (lines.empty()) return lines;
  if (!missing.empty())
    lines.push_back("no flight record of " +
                    named_ranks(std::vector<std::uint32_t>(missing.begin(), missing.end())));
  return lines;
}

std::vector<std::string> absent_lines(const std::vector<RankFlight>& flights,
                                      std::int64_t now_unix_ns) {
  std::vector<std::string> lines;
  for (const auto& [name, group] : groups_of(flights)) {
    const std::optional<StuckCollective> stuck = find_stuck_collective(group);
    if (stuck && !stuck->absent.empty() && lines.size() < kMaxLines)
      lines.push_back(stuck_line(group, *stuck, {.now_ns = now_unix_ns}));
  }
  return lines;
}

std::vector<std::string> waits_for_exited(std::vector<RankFlight> flights,
                                          const std::set<std::uint32_t>& exited) {
  std::set<std::uint32_t> missing = exited;
  for (const RankFlight& flight : flights) missing.erase(flight.rank);
  for (const std::uint32_t rank : missing) flights.push_back({rank, {}});
  std::vector<std::string> lines;
  for (const auto& [name, group] : groups_of(flights)) {
    const std::optional<StuckCollective> stuck = find_stuck_collective(group);
    if (!stuck || stuck->waiting.empty() || lines.size() >= kMaxLines) continue;
    std::vector<std::uint32_t> awaited;
    std::copy_if(stuck->absent.begin(), stuck->absent.end(), std::back_inserter(awaited),
                 [&exited](std::uint32_t rank) { return exited.contains(rank); });
    if (awaited.empty()) continue;
    lines.push_back(
        named_ranks(stuck->waiting) + (stuck->waiting.size() == 1 ? " waits for " : " wait for ") +
        named_ranks(awaited) + " in " + named(*stuck->entry) + " of " + quoted(*stuck->entry));
  }
  return lines;
}

}  // namespace ivy
