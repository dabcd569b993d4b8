// SPDX-License-Identifier: Apache-2.0
// Lists the absent ranks first, found by the same analysis as for torch's flight records
// (flights_of() converts to their form), then one line for each group of ranks in the same state
// (Groups).
#include "launcher/hang/operation_lines.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "launcher/hang/flight_analysis.h"
#include "launcher/report/folded_ranks.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/wire/operation.h"
#include "proto/wire/status_page.h"

namespace ivy {
namespace {

using comm_status::Dtype;
using comm_status::Operation;
using comm_status::Phase;
using comm_status::RankState;
using comm_status::Reduction;

// The name of the communicator of all ranks.
constexpr const char* kWorld = "world";
constexpr std::int64_t kMilli = 1'000'000;
constexpr std::size_t kMaxWaits = 16;  // Limit of the lines about waits for exited ranks.

// Ranks in the same state.
struct OperationGroup {
  std::string description = {};
  std::string behind = {};  // Text after the age: " ago".
  RankGroup members = {};
  std::string end = {};  // How the processes exited, such as "SIGKILL"; empty if they are running.
  bool has_age = true;
  std::uint64_t min_ms = ~std::uint64_t{0};
  std::uint64_t max_ms = 0;
};

std::string bare_details(const OperationState& state) {
  const auto operation = static_cast<Operation>(state.operation());
  const auto reduction = static_cast<Reduction>(state.reduction());
  std::string text;
  if (static_cast<Dtype>(state.dtype()) != Dtype::kNone)
    text = std::to_string(state.count()) + " " +
           std::string(comm_status::name_of(static_cast<Dtype>(state.dtype())));
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  if (reduction != Reduction::kNone) add(std::string(comm_status::name_of(reduction)));
  const bool is_send = operation == Operation::kSend;
  const bool is_receive = operation == Operation::kReceive;
  if (state.peer() >= 0) {
    add((is_send      ? "to rank "
         : is_receive ? "from rank "
                      : "root ") +
        std::to_string(state.peer()));
  } else if (is_receive) {
    add("from any rank");
  }
  if (state.tag_above() > 0) add("tag " + std::to_string(state.tag_above() - 1));
  return text;
}

std::string details(const OperationState& state) {
  const std::string text = bare_details(state);
  return text.empty() ? "" : " (" + text + ")";
}

std::string end_of(const RankOperations& rank) {
  switch (static_cast<RankState>(rank.state())) {
    case RankState::kExited:
      return "exit " + std::to_string(rank.code());
    case RankState::kSignalled:
      return signal_name(rank.code());
    case RankState::kDied:
      return "died";
    case RankState::kHostLost:
      return "host lost";
    case RankState::kAlive:
    case RankState::kLeft:
      return "";
  }
  return "";
}

bool is_message(const OperationState& state) {
  const auto operation = static_cast<Operation>(state.operation());
  return operation == Operation::kSend || operation == Operation::kReceive;
}

FlightEntry entry_of(const OperationState& state, bool is_over, std::int64_t now_ns) {
  FlightEntry entry;
  entry.group = state.communicator();
  entry.group_text = state.communicator();
  entry.sequence = static_cast<std::int64_t>(state.sequence());
  entry.operation = comm_status::name_of(static_cast<Operation>(state.operation()));
  entry.sizes = bare_details(state);
  entry.is_over = is_over;
  // The age of a finished operation counts from its end, not its start.
  const auto age_ns = static_cast<std::int64_t>(state.age_ms()) * kMilli;
  entry.created_unix_ns = is_over ? 0 : now_ns - age_ns;
  return entry;
}

// Converts a rank's operations to the form of torch's flight record, so that one analysis
// determines absent ranks.
// with_left: also ranks that have left, which others must not wait for any longer.
std::vector<RankFlight> flights_of(const std::vector<HostOperations>& hosts, std::int64_t now_ns,
                                   bool with_left) {
  std::vector<RankFlight> flights;
  std::set<std::uint32_t> world;
  for (const HostOperations& host : hosts)
    for (const RankOperations& rank : host.operations.ranks()) {
      if (!with_left && static_cast<RankState>(rank.state()) == RankState::kLeft) continue;
      world.insert(rank.rank());
      FlightRecord record;
      if (rank.has_last() && !is_message(rank.last()))
        record.entries.push_back(entry_of(rank.last(), true, now_ns));
      // Dead ranks do not wait for others.
      const bool is_dead = !end_of(rank).empty();
      for (const OperationState& state : rank.running())
        if (!is_message(state)) record.entries.push_back(entry_of(state, is_dead, now_ns));
      flights.push_back({rank.rank(), std::move(record)});
    }
  for (RankFlight& flight : flights) flight.record.members[kWorld] = world;
  return flights;
}

class Groups {
 public:
  void add(const std::string& host, const RankOperations& rank) {
    if (static_cast<RankState>(rank.state()) == RankState::kLeft)
      return add_line(host, rank, {.description = "has left the communicator", .has_age = false},
                      0);
    const bool is_dead = !end_of(rank).empty();
    for (const OperationState& state : rank.running()) {
      OperationGroup group;
      const std::string phase(is_message(state)
                                  ? "waiting for the other side"
                                  : comm_status::name_of(static_cast<Phase>(state.phase())));
      group.description =
          (is_dead ? "was in " : "in ") + name_of_operation(state) + details(state) + ", " + phase;
      group.description += is_dead ? ", entered " : ", for ";
      group.behind = is_dead ? " ago" : "";
      add_line(host, rank, std::move(group), state.age_ms());
    }
    if (rank.running_size() > 0) return;
    if (!rank.has_last())
      return add_line(host, rank, {.description = "no operation yet", .has_age = false}, 0);
    OperationGroup group;
    group.description = std::string(is_dead ? "had " : "between operations: ") +
                        (rank.last().failed() ? "failed in " : "finished ") +
                        name_of_operation(rank.last()) + " ";
    group.behind = " ago";
    add_line(host, rank, std::move(group), rank.last().age_ms());
  }

  std::string text() {
    std::string all;
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const OperationGroup& a, const OperationGroup& b) {
                       return a.members.ranks.front() < b.members.ranks.front();
                     });
    for (const OperationGroup& group : groups_) all += (all.empty() ? "" : "\n") + line_of(group);
    return all;
  }

 private:
  void add_line(const std::string& host, const RankOperations& rank, OperationGroup made,
                std::uint64_t age_ms) {
    const std::string end = end_of(rank);
    const auto same =
        std::find_if(groups_.begin(), groups_.end(), [&](const OperationGroup& group) {
          return group.description == made.description && group.end == end;
        });
    OperationGroup& group = same != groups_.end() ? *same : groups_.emplace_back(std::move(made));
    group.end = end;
    group.members.pid = rank.pid();
    group.members.add(rank.rank(), host);
    std::sort(group.members.ranks.begin(), group.members.ranks.end());
    group.min_ms = std::min(group.min_ms, age_ms);
    group.max_ms = std::max(group.max_ms, age_ms);
  }

  static std::string line_of(const OperationGroup& group) {
    std::string text = group.members.text();
    if (!group.end.empty()) text += "; " + group.end;
    text += "): " + group.description;
    if (!group.has_age) return text;
    const std::uint64_t min_s = group.min_ms / 1000;
    const std::uint64_t max_s = group.max_ms / 1000;
    text += std::to_string(min_s);
    if (max_s != min_s) text += "-" + std::to_string(max_s);
    return text + " s" + group.behind;
  }

  std::vector<OperationGroup> groups_;
};

}  // namespace

std::string name_of_operation(const OperationState& state) {
  std::string text(comm_status::name_of(static_cast<Operation>(state.operation())));
  text += " #" + std::to_string(state.sequence());
  if (!state.communicator().empty()) text += " of \"" + state.communicator() + "\"";
  return text;
}

std::vector<std::string> operation_waits(const std::vector<HostOperations>& hosts,
                                         const std::set<std::uint32_t>& exited) {
  std::vector<std::string> lines = waits_for_exited(flights_of(hosts, wall_ns(), true), exited);
  for (const HostOperations& host : hosts)
    for (const RankOperations& rank : host.operations.ranks())
      for (const OperationState& state : rank.running()) {
        if (!is_message(state) || exited.contains(rank.rank()) || state.peer() < 0 ||
            !exited.contains(static_cast<std::uint32_t>(state.peer())) ||
            state.communicator() != kWorld || lines.size() >= kMaxWaits)
          continue;
        lines.push_back("rank " + std::to_string(rank.rank()) + " waits for rank " +
                        std::to_string(state.peer()) + " in " + name_of_operation(state));
      }
  return lines;
}

std::string operation_lines(const std::vector<HostOperations>& hosts,
                            const std::vector<std::string>& silent) {
  Groups groups;
  for (const HostOperations& host : hosts)
    for (const RankOperations& rank : host.operations.ranks()) groups.add(host.host, rank);
  const std::int64_t now_ns = wall_ns();
  std::string text = joined(absent_lines(flights_of(hosts, now_ns, false), now_ns), "\n");
  const std::string lines = groups.text();
  text += (text.empty() || lines.empty() ? "" : "\n") + lines;
  for (const std::string& host : silent)
    text += (text.empty() ? "" : "\n") + ("host " + host + " did not answer in time");
  return text;
}

}  // namespace ivy
