// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator meet in the job's store before NCCL is asked for anything: everyone
// says who it is (preflight.h), rank 0 compares, and either everybody goes on with the same unique
// ids, or everybody gets the same refusal. Only when all have come is an id made: NCCL's root
// listens for ever for a rank that does not come.
//
//   <key>/begun/R     rank R loads its libraries
//   <key>/facts/R     rank R is ready, and what it is
//   <key>/go          rank 0's word: a refusal, "share" (use no NCCL), "shrink" (from the parent
//                     that all have), "probe", or how many ids
//   <key>/reach/R     after "probe", which is for ranks in several networks: the ranks that rank R
//                     cannot reach (interface_probe.h); " ": none
//   <key>/after_probe rank 0's word then
//   <key>/id/K        the unique id of root K
//   <key>/init/R      rank R has the ids and calls NCCL's init
//   <key>/done/R      rank R's init has ended well
//
// R is a rank of the communicator. Values that several ranks read are set once (SET_ONCE, which may
// be repeated with the same value).
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/preflight.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

struct BootstrapOptions {
  std::string communicator;
  std::string key;                      // The prefix of all its keys.
  store::Client* store = nullptr;       // Null: a world of one.
  std::vector<std::string> rank_names;  // "rank 3 (node2, pid 77)", by rank.
  std::vector<std::int32_t> world_ranks;
  bool spans_hosts = false;  // Then this rank listens for its neighbours' probes.
  std::int32_t rank = 0;
  bool can_scale = false;  // This rank's NCCL takes several ids.
  std::function<MaybeFailure(UniqueId& id)> make_id;
  // Asked every kSlice: why waiting is in vain.
  std::function<MaybeFailure()> trouble;
  std::chrono::steady_clock::time_point deadline;
};

struct Ready {
  MaybeFailure failure;
  bool is_shared = false;     // Devices are shared: NCCL is not to be used.
  std::vector<UniqueId> ids;  // None: it is made from the parent that all ranks have.
};

inline constexpr std::chrono::milliseconds kSlice{50};
// One root serves so many ranks: it accepts their connections one by one.
inline constexpr std::int32_t kRanksPerRoot = 128;

Ready bootstrap(const BootstrapOptions& options, const RankFacts& own);

// How far this rank is: the others are told so when they wait for it in vain.
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
