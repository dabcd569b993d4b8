// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator synchronize through the job's store before they call NCCL. Every rank
// publishes its facts (preflight.h), rank 0 compares them, and either all ranks get the same unique
// ids or all get the same error. Ids are made only when all ranks have arrived: NCCL's root waits
// for ever for a missing rank.
//
//   <key>/begun/R      rank R loads its libraries
//   <key>/facts/R      the facts of rank R, which is now ready
//   <key>/go           rank 0's decision: "refuse" with an error, "share" (ranks share devices, so
//                      NCCL is not used), "shrink" (create it from the parent that all ranks have),
//                      "probe", or "go" with the number of ids
//   <key>/reach/R      written after "probe", which rank 0 chooses if the ranks are in several
//                      networks: the first rank that rank R cannot reach and why
//                      (interface_probe.h), or " " if it reaches all of its neighbours
//   <key>/after_probe  rank 0's second decision, after a probe
//   <key>/id/K         the unique id that root K has made
//   <key>/init/R       rank R has the ids and calls NCCL's init
//   <key>/done/R       rank R's init has succeeded
//
// R is a rank of the communicator. A root is a rank that makes an id, to which NCCL's other ranks
// then connect. Values that several ranks read are set once (SET_ONCE, which may be repeated with
// the same value).
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/preflight.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

// The communicator on whose behalf a bootstrap runs.
class BootstrapOwner : public FailureSource {
 public:
  // Calls ncclGetUniqueId, which may block.
  virtual MaybeFailure make_id(std::chrono::steady_clock::time_point deadline, UniqueId& id) = 0;
};

struct BootstrapOptions {
  std::string communicator;
  std::string key;                        // The prefix of all its keys.
  store::Client* store = nullptr;         // Null if this rank is the only one.
  std::vector<std::string> rank_names;    // Such as "rank 3 (node2, pid 77)", by rank.
  std::vector<std::int32_t> world_ranks;  // The number of each rank in the world.
  bool spans_hosts = false;               // If true, this rank listens for its neighbours' probes.
  std::int32_t rank = 0;
  bool can_scale = false;           // This rank's NCCL accepts several ids.
  BootstrapOwner* owner = nullptr;  // Checked for trouble every kSlice.
  std::chrono::steady_clock::time_point deadline;
};

struct BootstrapResult {
  MaybeFailure failure;
  bool is_shared = false;     // Ranks share devices, so NCCL must not be used.
  std::vector<UniqueId> ids;  // If empty, create the communicator from the common parent.
};

inline constexpr std::chrono::milliseconds kSlice{50};
// Limit of ranks per root, because a root accepts their connections one by one.
inline constexpr std::int32_t kRanksPerRoot = 128;

// Blocks until all ranks have the same result, at the latest until the deadline.
BootstrapResult bootstrap(const BootstrapOptions& options, const RankFacts& own);

// This rank's progress, for the message of ranks that time out waiting for it.
enum class Phase : std::uint8_t { kBegun, kInit, kDone };
void report_phase(const BootstrapOptions& options, Phase phase);
// Returns, for example, "; also not finished: rank 3 (node2, pid 77) (it is in NCCL's init)", or
// "; the store does not answer". Returns an empty text if all other ranks are done, or without a
// store.
std::string describe_unfinished_ranks(const BootstrapOptions& options);

// Return the number of roots of a communicator, and the rank that is root number `root`. `wanted`
// is the user's number (IVY_NCCL_ROOTS), or 0 for the default. Pure.
std::int32_t root_count(std::int32_t ranks, bool can_scale, std::int32_t wanted);
std::int32_t rank_of_root(std::int32_t root, std::int32_t roots, std::int32_t ranks);

}  // namespace ivy::comm::nccl
