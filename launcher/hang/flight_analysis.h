// SPDX-License-Identifier: Apache-2.0
// Finds the ranks that a collective waits for, by the flight records of all ranks. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/hang/flight_record.h"

namespace ivy {

struct RankFlight {
  std::uint32_t rank = 0;
  FlightRecord record;
};

// One line for each process group in which a rank waits:
//
//   rank 3 did not enter all_reduce #812 of "default_pg" (last entered all_reduce #811 31 s ago);
//     ranks 0-2 wait in it ([[1000]] Float, at train.py:41) for 30 s
//   ranks differ at collective #5 of "default_pg": ranks 0-2 are in all_reduce ([[1000]] Float, at
//     train.py:41); rank 3 is in broadcast ([[1000]] Float, at train.py:57)
//
// now_unix_ns: when the records were taken. `world`: all ranks of the job, of which those whose
// record is missing are named. Empty: no rank waits.
//
// A group's members are the ranks that have entered anything in it, and those whom a record names;
// of the default group all.
std::vector<std::string> flight_lines(const std::vector<RankFlight>& flights, std::uint32_t world,
                                      std::int64_t now_unix_ns);

// Only of groups whose collective a known rank has not entered, the first of these lines.
std::vector<std::string> absent_lines(const std::vector<RankFlight>& flights,
                                      std::int64_t now_unix_ns);

}  // namespace ivy
