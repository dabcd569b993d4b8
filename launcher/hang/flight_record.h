// SPDX-License-Identifier: Apache-2.0
// Parses the records of torch's flight recorder, which list the collectives that a rank has
// entered, from the JSON of torch's worker server (versions 2.1 to 2.10 of the record). A
// manipulated record costs at most some 100 MiB while it is read. Pure; thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct FlightEntry {
  std::string group;          // "0": torch's name of the process group.
  std::string group_text;     // "default_pg"; may be empty or "undefined".
  std::int64_t sequence = 0;  // Counts the collectives of this group.
  std::string backend;        // "gloo", as the entry names it.
  std::string operation;      // "all_reduce", without the backend prefix.
  std::string sizes;          // The shapes of its inputs, such as "[[1000]]".
  std::string types;          // The element types of its inputs, such as "Float".
  bool is_point_to_point = false;
  bool is_over = false;  // Completed, or its work object retired.
  bool has_started = false;
  std::int64_t created_unix_ns = 0;
  std::string source_line = {};  // "train.py:41", from the rank's stack; not in the record.
};

struct FlightRecord {
  std::string version;
  std::vector<FlightEntry> entries;  // Oldest first.
  // Ranks of a group, by the group's name. Not known for every group.
  std::map<std::string, std::set<std::uint32_t>> members = {};
  // Sequence number of the newest collective in the default group, by backend, because `entries`
  // may omit finished ones.
  std::map<std::string, std::int64_t> last_of_default = {};
};

// A record that exceeds one of the first three limits is an error. Two bytes of JSON may become a
// value of 24 bytes. Digits after a rank that has reached the last limit are ignored.
inline constexpr std::size_t kMaxFlightBytes = 8u << 20;
inline constexpr std::size_t kMaxFlightDepth = 32;
inline constexpr std::size_t kMaxFlightEntries = 100'000;
inline constexpr std::uint32_t kMaxFlightRank = 100'000'000;

// Parses the record of one backend. Returns DataLoss if it is not JSON or too large, and
// InvalidArgument if the JSON is not a flight record.
Result<FlightRecord> read_flight_record(std::string_view json, const std::string& backend);
// Adds the entries of `more` that `record` lacks: another backend's, or older ones.
void merge(FlightRecord& record, FlightRecord more);

}  // namespace ivy
