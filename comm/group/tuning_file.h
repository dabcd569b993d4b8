// The tuning table that IVY_TUNING_FILE names, and what ranks tell each other of theirs when a
// world is made: all must choose the same way, so all must have the same table.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives/selector.h"
#include "proto/contract/status.h"

namespace ivy::comm {

struct OwnTuning {
  TuningTable table;
  // For the other ranks, one line: empty (no file, or no rows), the table's hash and where it is
  // from, or what is wrong with it, so that nobody waits for a rank that has given up.
  std::string said;
};

// Reads a regular file only, and never blocks. An empty path means no file.
OwnTuning read_tuning(const std::string& path);

// The text of one rank, as in OwnTuning::said.
struct SaidTuning {
  std::uint32_t rank = 0;
  std::string host;
  std::string said;
};

// The same on all ranks; nothing: all have the same table, or none. InvalidArgument: one could not
// read its own. FailedPrecondition: names two that differ, their hosts and files. Pure.
std::optional<Error> tuning_trouble(const std::vector<SaidTuning>& all);

}  // namespace ivy::comm
