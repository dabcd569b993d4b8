// SPDX-License-Identifier: Apache-2.0
// Predicts from the facts of all ranks whether NCCL's init would hang or fail. NCCL itself hangs,
// or exits without a message, in most of the cases that are found here.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/rank_facts.h"

namespace ivy::comm::nccl {

struct Finding {
  // Worst first. kSharedDevice means that ranks share a device on purpose, so NCCL is not used, but
  // the job runs.
  enum class Kind : std::uint8_t { kError, kSharedDevice, kWarning };
  Kind kind = Kind::kError;
  std::int32_t rank = -1;  // The number in the world of the rank that it concerns.
  std::string text;        // Such as "rank 3 (node2, pid 77): no GPU driver was found".
  std::string fix;
};

// Limit of findings, because one cause often produces a finding on every rank.
inline constexpr std::size_t kFindingsMax = 16;
// Returns the findings, worst first.
std::vector<Finding> compare_ranks(const std::vector<RankFacts>& ranks);

// Returns the interface that NCCL uses for its sockets, by its own rules: NCCL_SOCKET_IFNAME is a
// list of prefixes; a leading "=" requires whole names, "^" excludes them; without the variable it
// takes names that start with "ib" first, then all others except docker, lo and virbr, then docker,
// lo and virbr in this order. Returns nothing if none matches; NCCL's init then fails or, in some
// versions, hangs.
std::optional<Interface> choose_interface(const std::vector<Interface>& interfaces,
                                          std::string_view wanted);

// Returns the interface that this rank's NCCL uses, according to the rank's variables.
std::optional<Interface> interface_of(const RankFacts& rank);

// Returns true if both ranks are in one network namespace of one machine, and so share interfaces.
bool is_same_network(const RankFacts& left, const RankFacts& right);
// Returns true if the ranks are in more than one network namespace.
bool spans_networks(const std::vector<RankFacts>& ranks);

// Return the message of a rank that could not connect to the address on which NCCL of `peer` will
// listen, and the finding with that message.
std::string unreachable_text(const RankFacts& peer, const Interface& interface,
                             const std::string& why);
Finding unreachable_finding(const std::vector<RankFacts>& ranks, const RankFacts& rank,
                            const std::string& text);

// Encode facts as bytes and decode them. decode() returns nothing for bytes that are not from
// encode().
std::string encode(const RankFacts& facts);
std::optional<RankFacts> decode(const std::string& bytes);

}  // namespace ivy::comm::nccl
