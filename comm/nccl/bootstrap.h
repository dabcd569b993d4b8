// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator synchronize in the job's store before they call NCCL. Every rank
// publishes its facts (preflight.h), rank 0 compares them, and either all ranks get the same unique
// ids or all get the same error. Ids are made only when all ranks have arrived: NCCL's root waits
// for ever for a missing rank.
//
//   <key>/begun/R     rank R loads its libraries
//   <key>/facts/R     rank R is ready; its facts
//   <key>/go          rank 0's decision: an error, "share" (use no NCCL), "shrink" (from the
//                     parent that all have), "probe", or the number of ids
//   <key>/reach/R     after "probe", which is for ranks in several networks: the ranks that rank R
//                     cannot reach (interface_probe.h); " ": none
//   <key>/after_probe rank 0's decision after that
//   <key>/id/K        the unique id of root K
//   <key>/init/R      rank R has the ids and calls NCCL's init
//   <key>/done/R      rank R's init has succeeded
//
// R is a rank of the communicator. Values that several ranks read are set once (SET_ONCE, which may
// be repeated with the same value).
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

// What a bootstrap needs from the communicator that calls it.
class BootstrapOwner : public TroubleSource {
 public:
  virtual MaybeFailure make_id(std::chrono::steady_clock::time_point deadline, UniqueId& id) = 0;
};

struct BootstrapOptions {
  std::string communicator;
  std::string key;                      // The prefix of all its keys.
  store::Client* store = nullptr;       // Null: a world of one.
  std::vector<std::string> rank_names;  // "rank 3 (node2, pid 77)", by rank.
  std::vector<std::int32_t> world_ranks;
  bool spans_hosts = false;  // Then this rank listens for its neighbours' probes.
  std::int32_t rank = 0;
  bool can_scale = false;           // This rank's NCCL takes several ids.
  BootstrapOwner* owner = nullptr;  // Checked for trouble every kSlice.
  std::chrono::steady_clock::time_point deadline;
};

struct BootstrapResult {
  MaybeFailure failure;
  bool is_shared = false;     // Ranks share devices: do not use NCCL.
  std::vector<UniqueId> ids;  // Empty: create it from the parent that all ranks have.
};

inline constexpr std::chrono::milliseconds kSlice{50};
// The most ranks for one root, which accepts their connections one by one.
inline constexpr std::int32_t kRanksPerRoot = 128;

BootstrapResult bootstrap(const BootstrapOptions& options, const RankFacts& own);

// This rank's progress, for the message of ranks that time out waiting for it.
enum class Phase : std::uint8_t { kBegun, kInit, kDone };
void report_phase(const BootstrapOptions& options, Phase phase);
// "; not done either: rank 3 (node2, pid 77) (it is in NCCL's init)"; empty: all others are done,
// or it is not known.
std::string who_is_not_done(const BootstrapOptions& options);

// How many ids a communicator has, and which rank makes number K. Pure. `wanted`: what the user
// says (IVY_NCCL_ROOTS), 0: nothing.
std::int32_t root_count(std::int32_t ranks, bool can_scale, std::int32_t wanted);
std::int32_t rank_of_root(std::int32_t root, std::int32_t roots, std::int32_t ranks);

}  // namespace ivy::comm::nccl
