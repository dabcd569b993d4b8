// The tuning table as text, one row per line, and back:
//
//   # operation       members  over  from   way
//   all_gather        2        shm   64K    slots
//   all_gather        2        shm   8M     built-in
//   all_gather.stores any      shm   0      cached
//   all_reduce        2-8      tcp   64K    sliced
//   broadcast.piece   9-       tcp   0      1M
//
// docs/tuning.md says what each word means. Pure; thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "comm/collectives/selector.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Generous limits: about one row for each operation, size and number of members.
inline constexpr std::size_t kTuningRowsMax = 1000;
inline constexpr std::size_t kTuningTextMax = 128 * 1024;

// The rows, sorted. `name` stands in messages: "name:LINE:COLUMN: what", with what to do.
// InvalidArgument: the first thing that is wrong.
Result<TuningTable> parse_tuning(std::string_view text, const std::string& name);

// One line for each row; parse_tuning() of it gives the same rows, if they are sorted.
std::string tuning_text(const TuningTable& table);

// A hash of 16 digits: equal for tables that say the same, whatever text stands around the rows.
std::string tuning_hash(const TuningTable& table);

}  // namespace ivy::comm
