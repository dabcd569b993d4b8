// SPDX-License-Identifier: Apache-2.0
// The MPI state of this host's ranks, as reported by its MPI servers, and the meaning of their
// exits. A process that leaves its world without MPI_Finalize makes the others wait forever, so it
// counts as failed whatever its exit code. Pure. Not thread-safe.
//
//   absent ──joined──▶ joined ──left──▶ left
//                        ├──abort──▶ aborted       killed after kAbortNs; its code is MPI_Abort's
//                        └──vanished──▶ vanished   killed after kVanishedNs
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/exit_code.h"

namespace ivy {

// Facts about an exit in addition to its status.
struct MpiEnd {
  std::optional<int> code = {};  // Overrides the exit code; if absent, the exit status counts.
  // "with exit 0 before MPI_Finalize: the other ranks wait for it": the part before the colon is
  // appended to "rank 3 failed first (node1, pid 17)", the rest, if any, is a separate line.
  std::string cause = {};
  bool is_absent = false;  // It exited successfully and never called MPI_Init.
};

class MpiRanks {
 public:
  // How long a process may continue after its MPI connection has closed.
  static constexpr std::uint64_t kAbortNs = 200'000'000;  // Enough time for its last output.
  static constexpr std::uint64_t kVanishedNs = 2'000'000'000;

  // Starts a generation. `required`: every rank must call MPI_Init (-B mpi).
  void begin(bool required) { *this = MpiRanks(required); }

  // Handles an event of a server: "joined 3", "left 3", "abort 3 7 text", "vanished 3". Returns
  // false if the line is not an event.
  bool take(std::string_view line, std::uint64_t now_ns);
  // Returns the ranks that have joined for the first time since the last call.
  std::vector<std::uint32_t> take_new();
  bool has_joined() const;  // Any rank of this host.
  MpiEnd classify(std::uint32_t rank, const ExitStatus& status) const;
  // Returns the ranks that must be killed now, each only once.
  std::vector<std::uint32_t> overdue(std::uint64_t now_ns);

  MpiRanks() = default;

 private:
  enum class State { kAbsent, kJoined, kLeft, kAborted, kVanished };
  struct Rank {
    State state = State::kAbsent;
    int code = 1;
    std::string text;
    std::optional<std::uint64_t> kill_at_ns;
  };
  explicit MpiRanks(bool required) : required_(required) {}
  MpiEnd classify_absent() const;

  bool required_ = false;
  std::vector<std::uint32_t> new_;
  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace ivy
