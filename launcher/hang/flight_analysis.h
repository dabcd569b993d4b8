// SPDX-License-Identifier: Apache-2.0
// Finds the ranks that a collective waits for, from the flight records of all ranks. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "launcher/hang/flight_record.h"

namespace ivy {

struct RankFlight {
  std::uint32_t rank = 0;
  FlightRecord record;
};

// Returns one line for each process group in which a rank waits, and for each unfinished send or
// receive of a rank:
//
//   rank 3 did not enter all_reduce #812 of "default_pg" (last entered all_reduce #811 31 s ago);
//     ranks 0-2 wait in it ([[1000]] Float, at train.py:41) for 30 s
//   ranks differ at collective #5 of "default_pg": ranks 0-2 are in all_reduce ([[1000]] Float, at
//     train.py:41); rank 3 is in broadcast ([[1000]] Float, at train.py:57)
//
// now_unix_ns: when the records were taken. `world`: the number of ranks; ranks without a record
// are named. Returns no lines if no rank waits.
//
// The members of a group are the ranks that have entered any of its collectives, and those that a
// record names; in the default group, all ranks.
std::vector<std::string> flight_lines(const std::vector<RankFlight>& flights, std::uint32_t world,
                                      std::int64_t now_unix_ns);

// Returns only lines of the first form, for groups with a known rank that has not entered the
// collective.
std::vector<std::string> absent_lines(const std::vector<RankFlight>& flights,
                                      std::int64_t now_unix_ns);

// Returns 'ranks 1-2 wait for rank 0 in all_reduce #812 of "world"' for each group in which ranks
// wait for some of `exited`, which have exited and need not have a record.
std::vector<std::string> waits_for_exited(std::vector<RankFlight> flights,
                                          const std::set<std::uint32_t>& exited);

}  // namespace ivy
