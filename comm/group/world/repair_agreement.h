// SPDX-License-Identifier: Apache-2.0
// The members of a world that is repaired, decided by what one of its survivors knows. The first
// rank that can decide does so for all (repair.h).
//
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

enum class RepairAim : std::uint8_t {
  kShrink,  // The survivors alone, in their order.
  kGrow,    // Every rank of the job: the lost ones are processes that were started again.
};
std::string_view name_of(RepairAim aim);  // As its function is called: "shrink".

// The known state of one rank of the job.
struct RepairRank {
  bool was_member = false;          // In the world that is repaired.
  std::uint32_t incarnation = 0;    // Its process then: how many times it had been started again.
  bool is_dead = false;             // The process that was a member.
  std::optional<RepairAim> called;  // The function that the process called; nothing: none yet.
  std::optional<std::uint32_t> newcomer;  // Incarnation of the process that waits to join.
};
using RepairView = std::vector<RepairRank>;  // By rank of the job.

struct RepairMember {
  std::uint32_t job_rank = 0;
  std::uint32_t incarnation = 0;
  bool is_newcomer = false;
  bool operator==(const RepairMember&) const = default;
};

// Either the members, by rank of the job, or why there will be no such world.
struct RepairDecision {
  std::vector<RepairMember> members;
  std::optional<Error> refusal;

  std::string encoded() const;
  // DataLoss: not a decision.
  static Result<RepairDecision> decoded(const std::string& text);
  // The place of that process among the members; nothing: it is not one of them.
  std::optional<std::uint32_t> place_of(std::uint32_t job_rank, std::uint32_t incarnation) const;
};

// Nothing: some rank may still come, or be known to be dead. Aborted: survivors have called
// different things.
std::optional<RepairDecision> decide(RepairAim aim, const RepairView& view);

// True if no living survivor with a lower rank has come: that rank looks often, the others seldom.
bool is_first_of_those_who_came(const RepairView& view, std::uint32_t job_rank);

// "rank 2 has not called shrink, rank 3 has not been started again"
std::string missing_text(RepairAim aim, const RepairView& view);

}  // namespace ivy::comm
