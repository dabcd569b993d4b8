// SPDX-License-Identifier: Apache-2.0
// The faults of --drill in the order in which they are due, and their targets. Everything random is
// drawn from std::mt19937_64, which is the same everywhere: rule number i (from 0) seeds one with
// its seed plus i, and draws two numbers for each fault: the kind, then the target. A choice among
// n is the number modulo n. Pure; thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "launcher/options/drill_rule.h"

namespace ivy {

// A fault that is due at this time since the start of the first attempt.
struct DueFault {
  std::size_t rule = 0;
  Fault fault = Fault::kKill;
  std::uint64_t draw = 0;  // Chooses the target.
  std::chrono::milliseconds at{0};
};

class DrillSchedule {
 public:
  explicit DrillSchedule(const std::vector<DrillRule>& rules);

  // Returns the next fault; none if all rules have had their times.
  std::optional<DueFault> next() const;
  // The next fault was injected (or given up) at this time, which may be late: the job may have
  // been starting again. Its rule's next one follows `every` after it.
  void take(std::chrono::milliseconds at);

 private:
  struct Line {
    DrillRule rule;
    std::mt19937_64 random;
    DueFault due;
    std::uint64_t taken = 0;
  };
  void draw(Line& line) const;
  std::optional<std::size_t> first() const;

  std::vector<Line> lines_;
};

// The ranks and hosts that a fault may hit.
struct DrillWorld {
  struct Host {
    std::size_t index = 0;  // In the job.
    std::string name;
    // The launcher runs here or is this simulated host's machine, so its network cannot be faulted.
    bool shares_network = false;
  };
  struct Rank {
    int rank = 0;
    std::size_t host = 0;  // Index in `hosts`.
  };
  std::vector<Host> hosts;
  std::vector<Rank> ranks;
};

struct DrillTarget {
  std::vector<DrillWorld::Rank> ranks;  // For a fault of ranks.
  std::vector<std::size_t> hosts;       // Indices in DrillWorld::hosts.

  bool empty() const { return hosts.empty(); }
};

// Returns an empty target if the world has no candidate, because the listed ranks have exited.
DrillTarget pick_target(const DrillRule& rule, Fault fault, std::uint64_t draw,
                        const DrillWorld& world);
// "rank 3 (node02)", "ranks 0-3", "node02".
std::string target_text(const DrillTarget& target, const DrillWorld& world);

// Rejects ranks and hosts that are not in the world, with the column in the rule.
Result<void> check_targets(const DrillRule& rule, const DrillWorld& world);

// Returns the plan as shown to the user: the first faults with their times and targets.
std::vector<std::string> drill_plan_lines(const std::vector<DrillRule>& rules,
                                          const DrillWorld& world);

}  // namespace ivy
