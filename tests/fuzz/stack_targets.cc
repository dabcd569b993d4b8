// SPDX-License-Identifier: Apache-2.0
// Texts that a worker's process writes: torch's flight records and stacks.
#include <algorithm>
#include <cstddef>

#include "launcher/hang/flight_analysis.h"
#include "launcher/hang/flight_record.h"
#include "launcher/hang/stack_text.h"
#include "proto/contract/status.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {

void flight_record(std::string_view bytes) {
  const Result<FlightRecord> record = read_flight_record(bytes, "gloo");
  if (!record.ok()) {
    IVY_ASSERT(!record.error().message.empty());
    return;
  }
  IVY_ASSERT(record->entries.size() <= kMaxFlightEntries);
  for (const FlightEntry& entry : record->entries) IVY_ASSERT(entry.sizes.size() <= 4096);
  // Two ranks with the same record: no rank may be blamed for being late.
  const std::vector<RankFlight> flights = {{0, *record}, {1, *record}};
  for (const std::string& line : flight_lines(flights, 2, 0))
    IVY_ASSERT(!line.starts_with("rank 0 did not enter") && !line.starts_with("rank 1 did not"));
}

void stack_text(std::string_view bytes) {
  constexpr std::array<std::string_view, 3> kTools = {"faulthandler", "py-spy", "gdb"};
  if (bytes.empty()) return;
  const std::string_view tool = kTools[static_cast<unsigned char>(bytes.front()) % kTools.size()];
  const std::vector<StackThread> threads = parse_stack(tool, bytes.substr(1));
  std::size_t frames = 0;
  for (const StackThread& thread : threads) {
    IVY_ASSERT(!thread.frames.empty());
    frames += thread.frames.size();
    collective_of(thread);
  }
  // Each frame takes at least one line.
  IVY_ASSERT(frames <= 1 + static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')));
}

}  // namespace ivy::fuzz
