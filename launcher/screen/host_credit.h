// SPDX-License-Identifier: Apache-2.0
// Sums up the bytes of each host's output that were written or dropped: its host may send as many
// more (Output::grant_credit()). Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace ivy {

class HostCredit {
 public:
  // The next `bytes` bytes that add() gets are shown a second time; the host got credit for them
  // before.
  void repeat(int host_index, std::uint64_t bytes) { repeated_[host_index] += bytes; }
  // Call when bytes of the host's output were written or dropped.
  void add(int host_index, std::uint64_t bytes) {
    bytes -= take_repeated(host_index, bytes);
    if (bytes > 0) owed_[host_index] += bytes;
  }
  // Returns by host what was added since the last call.
  std::map<int, std::uint64_t> take() { return std::exchange(owed_, {}); }

 private:
  std::uint64_t take_repeated(int host_index, std::uint64_t max_bytes) {
    const auto found = repeated_.find(host_index);
    if (found == repeated_.end()) return 0;
    const std::uint64_t bytes = std::min(found->second, max_bytes);
    found->second -= bytes;
    return bytes;
  }

  // By host; one entry for each host of the job at most.
  std::map<int, std::uint64_t> owed_;
  std::map<int, std::uint64_t> repeated_;
};

}  // namespace ivy
