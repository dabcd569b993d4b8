// SPDX-License-Identifier: Apache-2.0
// Predicts whether NCCL's init would hang or fail, from what every rank says about itself, because
// NCCL itself hangs, or exits without a message, on most of what is found here.
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
  // Worst first. Devices that ranks share on purpose: NCCL is not used, everything else is well.
  enum class Kind : std::uint8_t { kError, kSharedDevice, kWarning };
  Kind kind = Kind::kError;
  std::int32_t rank = -1;  // The world rank that it is about.
  std::string text;        // "rank 3 (node2, pid 77): no driver ..."
  std::string fix;
};

// All that is wrong, worst first. At most kFindingsMax: one cause often shows on every rank.
inline constexpr std::size_t kFindingsMax = 16;
std::vector<Finding> compare_ranks(const std::vector<RankFacts>& ranks);

// Returns the interface that NCCL uses for its sockets, by its own rules: NCCL_SOCKET_IFNAME is a
// list of prefixes; a leading "=" requires whole names, "^" excludes them; without the variable it
// takes names that start with "ib" first, then all others except docker and lo, then docker, then
// lo. Nothing: none matches, and NCCL's init fails or, in some versions, hangs.
std::optional<Interface> choose_interface(const std::vector<Interface>& interfaces,
                                          std::string_view wanted);

// The interface that this rank's NCCL takes, by its own variables.
std::optional<Interface> interface_of(const RankFacts& rank);

// True if both are in one network namespace of one machine, where addresses mean the same.
bool is_same_network(const RankFacts& left, const RankFacts& right);
bool spans_networks(const std::vector<RankFacts>& ranks);

// Message of a rank that could not connect to the address on which `peer` will listen, and the
// resulting finding.
std::string unreachable_text(const RankFacts& peer, const Interface& interface,
                             const std::string& why);
Finding unreachable_finding(const std::vector<RankFacts>& ranks, const RankFacts& rank,
                            const std::string& text);

// As bytes and back; nothing: not what encode() made.
std::string encode(const RankFacts& facts);
std::optional<RankFacts> decode(const std::string& bytes);

}  // namespace ivy::comm::nccl
