// torch's flight recorder: what a rank has put into collectives. Reads the JSON that torch's worker
// server answers with, and the dump that torch writes, a Python pickle, without executing any of
// it: only plain data (None, bool, int, float, str, bytes, list, tuple, dict and the memo) is
// understood, everything else is an error. So a dump that was tampered with costs memory within the
// limits below and nothing else.
//
// Pure; thread: any. Source of the format: "pickletools" in Python's library, protocols 0 to 5, and
// torch 2.15's dump (versions 2.1 to 2.10 of the record).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct FlightFrame {
  std::string name;
  std::string file;
  std::int64_t line = 0;
  bool operator==(const FlightFrame&) const = default;
};

struct FlightEntry {
  std::string group;          // "0": torch's name of the process group.
  std::string group_text;     // "default_pg"; may be empty or "undefined".
  std::int64_t sequence = 0;  // Counts the collectives of this group.
  std::string backend;        // "gloo", as the entry names it.
  std::string operation;      // "all_reduce", without the backend in front.
  std::string sizes;          // The shapes of its inputs, such as "[[1000]]".
  std::string types;          // The element types of its inputs, such as "Float".
  bool is_point_to_point = false;
  bool is_over = false;  // Completed, or its work object retired.
  bool has_started = false;
  std::int64_t created_unix_ns = 0;
  std::vector<FlightFrame> frames;  // Innermost first; may be empty.
  std::string place = {};           // "train.py:41", where another source than frames tells it.
};

struct FlightRecord {
  std::string version;
  std::vector<FlightEntry> entries;  // The oldest entry comes first.
  // Ranks of a group, by the group's name; not of every group.
  std::map<std::string, std::set<std::uint32_t>> members = {};
  // The number of the newest collective that was put into the default group, by backend: `entries`
  // may leave out what is over.
  std::map<std::string, std::int64_t> last_of_default = {};
};

// Limits: a dump beyond them is an error.
inline constexpr std::size_t kMaxFlightBytes = 32u << 20;
inline constexpr std::size_t kMaxFlightValues = 1u << 20;      // A value takes some 150 bytes.
inline constexpr std::size_t kMaxFlightReferences = 8u << 20;  // A reference takes 16 bytes.
inline constexpr std::size_t kMaxFlightDepth = 32;
inline constexpr std::size_t kMaxFlightEntries = 100'000;
inline constexpr std::uint32_t kMaxFlightRank = 100'000'000;

// DataLoss: not such a pickle. InvalidArgument: plain data, and no flight record.
Result<FlightRecord> read_flight_record(std::string_view pickle);
// The same of JSON, which holds the record of one backend.
Result<FlightRecord> read_flight_json(std::string_view json, const std::string& backend);
// Adds what `more` knows and `record` does not: another backend's entries, or older ones.
void merge(FlightRecord& record, FlightRecord more);

}  // namespace ivy
