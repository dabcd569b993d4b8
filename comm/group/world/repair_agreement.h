// SPDX-License-Identifier: Apache-2.0
// Decides the members of a repaired world from the knowledge of one of its survivors. The first
// rank that can decide does so for all (repair.h).
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::comm {

enum class RepairAim : std::uint8_t {
  kShrink,  // Only the survivors, in their order.
  kGrow,    // Every rank of the job; the lost ones are restarted processes.
};
std::string_view name_of(RepairAim aim);  // The name of the function: "shrink".

// The known state of one rank of the job.
struct RepairRank {
  bool was_member = false;          // It was in the broken world.
  std::uint32_t incarnation = 0;    // Number of times that its process then had been restarted.
  bool is_dead = false;             // The process that was a member is dead.
  std::optional<RepairAim> called;  // The function that the process has called, if any.
  // Incarnation of the process that waits to join, if any.
  std::optional<std::uint32_t> new_member;
};
using RepairView = std::vector<RepairRank>;  // Indexed by rank of the job.

struct RepairMember {
  std::uint32_t job_rank = 0;
  std::uint32_t incarnation = 0;
  bool is_new_member = false;
  bool operator==(const RepairMember&) const = default;
};

// Either the members, by rank of the job, or the reason why there will be no such world.
struct RepairDecision {
  std::vector<RepairMember> members;
  std::optional<Error> rejection;

  // Formats the decision for the job's store: either
  //   members
  //   RANK INCARNATION IS_NEW      a line for each, such as "7 2 1"
  // or "no " and the rejection, as "CODE BYTES\nMESSAGE" followed by the fix. BYTES is the length
  // of the message: both may have several lines.
  std::string encoded() const;
  // Fails with DataLoss if the text is not a decision.
  static Result<RepairDecision> decoded(std::string_view text);
  // Returns the position of that process among the members, or nothing if it is not one of them.
  std::optional<std::uint32_t> position_of(std::uint32_t job_rank, std::uint32_t incarnation) const;
};

// The result of one epoch's attempt, the same for all its members.
struct RepairEnd {
  bool is_formed = false;
  bool is_death = false;  // A member has died; the next epoch continues without it.
  Error error;            // The reason why it was not formed.

  // Formats the result for the job's store: "formed", or "death " or "error " and the error in the
  // form of a rejection.
  std::string encoded() const;
  // Fails with DataLoss if the text is not a result.
  static Result<RepairEnd> decoded(std::string_view text);
};

// Decides if the state of every rank is known. Returns nothing if the caller must wait: a rank may
// still call, be found dead, or be restarted. Also returns nothing if no member would be left,
// which happens only if the caller itself is believed dead. Decides with Aborted if survivors have
// called different functions.
std::optional<RepairDecision> decide(RepairAim aim, const RepairView& view);

// Returns whether no survivor that has called has a lower rank. The lowest one checks often, the
// others seldom.
bool is_lowest_caller(const RepairView& view, std::uint32_t job_rank);

// Returns a text such as "rank 2 has not called shrink, rank 3 has not been restarted".
std::string missing_text(RepairAim aim, const RepairView& view);

}  // namespace ivy::comm
