// SPDX-License-Identifier: Apache-2.0
// The failed ranks of this host in a job that replaces them (--on-failure replace): which of them
// wait for the launcher's decision, and which will be started again, and when. Pure. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace ivy {

class Replacements {
 public:
  struct Ordered {
    std::uint32_t rank = 0;
    std::uint32_t rejoins = 0;
    std::uint64_t due_ns = 0;
  };

  // Starts a generation. waits: failed ranks wait for the launcher's decision.
  void begin(bool waits);
  void failed(std::uint32_t rank);
  // Records the launcher's decision. Returns false if no decision is expected for this rank.
  bool order(const Ordered& ordered);
  void abandon(std::uint32_t rank) { slots_.erase(rank); }
  // Returns true if a failed rank may still be replaced: this host is not done, even if no worker
  // is running.
  bool awaits() const { return !slots_.empty(); }
  // Returns the ranks that are due and whose last process has left nothing behind, each only once.
  std::vector<Ordered> take_due(std::uint64_t now_ns,
                                const std::function<bool(std::uint32_t rank)>& is_over);
  std::optional<std::uint64_t> next_due_ns() const;
  // Call when a stop starts: cancels all pending restarts and returns their ranks.
  std::vector<std::uint32_t> give_up();

 private:
  bool waits_ = false;
  std::map<std::uint32_t, std::optional<Ordered>> slots_;  // By rank; empty until decided.
};

}  // namespace ivy
