// SPDX-License-Identifier: Apache-2.0
// The ranks of this host that have failed in a job that replaces them (--on-failure replace): for
// which the launcher's word is awaited, and which are started again, and when. Pure; thread: any,
// one at a time.
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

  // A generation begins. waits: its failed ranks are kept a place until the launcher has decided.
  void begin(bool waits);
  void failed(std::uint32_t rank);
  // The launcher's word. False: nothing is awaited for this rank.
  bool order(const Ordered& ordered);
  void forgo(std::uint32_t rank) { places_.erase(rank); }
  // Some place is kept: this host is not done, though no worker may live.
  bool awaits() const { return !places_.empty(); }
  // Returns the ranks that are due and whose last process has left nothing behind; each only once.
  std::vector<Ordered> take_due(std::uint64_t now_ns,
                                const std::function<bool(std::uint32_t rank)>& is_over);
  std::optional<std::uint64_t> next_due_ns() const;
  // Call when a stop starts: cancels all pending restarts and returns their ranks.
  std::vector<std::uint32_t> give_up();

 private:
  bool waits_ = false;
  std::map<std::uint32_t, std::optional<Ordered>> places_;  // By rank; without an order yet.
};

}  // namespace ivy
