// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/flight_record.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <set>
#include <tuple>
#include <utility>

namespace ivy {
namespace {

using boost::json::object;
using boost::json::value;

// Limit in bytes of sizes and names, which are shown to people.
constexpr std::size_t kMaxShownBytes = 200;

std::string cut(std::string_view text) { return std::string(text.substr(0, kMaxShownBytes)); }

std::string text_of(const object& parent, std::string_view key) {
  const value* found = parent.if_contains(key);
  return found != nullptr && found->is_string() ? cut(found->as_string()) : "";
}

std::int64_t number_of(const object& parent, std::string_view key) {
  const value* found = parent.if_contains(key);
  if (found == nullptr) return 0;
  if (found->is_bool()) return found->as_bool() ? 1 : 0;
  return found->is_int64() ? found->as_int64() : 0;
}

// Returns a readable form of a value: "default_pg" for a string, "[[1000], [2]]" for nested lists.
std::string readable(const value& found) {
  if (found.is_string()) return cut(found.as_string());
  if (!found.is_array()) return cut(boost::json::serialize(found));
  std::string all = "[";
  for (const value& item : found.as_array()) {
    if (all.size() > 1) all += ", ";
    if (all.size() >= kMaxShownBytes) return all + "...]";
    all += readable(item);
  }
  return all + "]";
}

std::string readable_field(const object& parent, std::string_view key) {
  const value* found = parent.if_contains(key);
  return found == nullptr ? "" : readable(*found);
}

const boost::json::array* list_of(const object& parent, std::string_view key) {
  const value* found = parent.if_contains(key);
  return found == nullptr ? nullptr : found->if_array();
}

// Splits "nccl:all_reduce" into "nccl" and "all_reduce"; "nccl:send 0->1" keeps its peers.
void set_operation(const object& recorded, FlightEntry& entry) {
  entry.operation = text_of(recorded, "profiling_name");
  const std::size_t colon = entry.operation.find(':');
  if (colon == std::string::npos) return;
  entry.backend = entry.operation.substr(0, colon);
  entry.operation.erase(0, colon + 1);
}

FlightEntry entry_of(const object& recorded) {
  FlightEntry entry;
  // (name, description); before version 2.2 only the name.
  const boost::json::array* group = list_of(recorded, "process_group");
  if (group != nullptr && !group->empty()) {
    entry.group = readable(group->front());
    if (group->size() > 1) entry.group_text = readable((*group)[1]);
  } else {
    entry.group = readable_field(recorded, "pg_id");
  }
  entry.is_point_to_point = number_of(recorded, "is_p2p") != 0;
  const char* key = recorded.contains("collective_seq_id") ? "collective_seq_id" : "seq_id";
  entry.sequence = number_of(recorded, entry.is_point_to_point ? "p2p_seq_id" : key);
  set_operation(recorded, entry);
  entry.sizes = readable_field(recorded, "input_sizes");
  // The type of the first tensor suffices.
  const boost::json::array* types = list_of(recorded, "input_dtypes");
  if (types != nullptr && !types->empty()) entry.types = readable(types->front());
  const std::string state = text_of(recorded, "state");
  entry.is_over = state == "completed" || number_of(recorded, "retired") != 0;
  entry.has_started = state != "scheduled";
  entry.created_unix_ns = number_of(recorded, "time_created_ns");
  return entry;
}

// Reads the ranks from a text such as "[0, 1, 5]".
std::set<std::uint32_t> ranks_of(std::string_view text) {
  std::set<std::uint32_t> ranks;
  std::uint64_t number = 0;
  bool has_digit = false;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && number < kMaxFlightRank) number = number * 10 + static_cast<unsigned>(c - '0');
    if (!is_digit && has_digit) ranks.insert(static_cast<std::uint32_t>(number));
    if (!is_digit) number = 0;
    has_digit = is_digit;
  }
  return ranks;
}

// Reads the members of each group that has a name: Gloo announces its groups before naming them.
void add_members(const object& root, FlightRecord& record) {
  const value* groups = root.if_contains("pg_config");
  if (groups == nullptr || !groups->is_object()) return;
  for (const auto& [number, group] : groups->as_object()) {
    const object* described = group.if_object();
    if (described == nullptr) continue;
    const std::string name = text_of(*described, "name");
    const value* ranks = described->if_contains("ranks");
    if (!name.empty() && ranks != nullptr && ranks->is_string())
      record.members[name] = ranks_of(ranks->as_string());
  }
}

// Each process numbers its groups independently; only the default group has the same number, 0,
// everywhere.
void add_last_of_default(const object& root, const std::string& backend, FlightRecord& record) {
  const value* groups = root.if_contains("pg_status");
  if (groups == nullptr || !groups->is_object()) return;
  const value* status = groups->as_object().if_contains("0");
  if (status == nullptr || !status->is_object()) return;
  const std::string last = text_of(status->as_object(), "last_enqueued_collective");
  const std::int64_t number = number_of(status->as_object(), "last_enqueued_collective");
  // Entries contain the backend's own name for itself.
  record.last_of_default[record.entries.empty() ? backend : record.entries.front().backend] =
      last.empty() ? number : std::strtoll(last.c_str(), nullptr, 10);
}

auto identity_of(const FlightEntry& entry) {
  return std::tie(entry.group, entry.is_point_to_point, entry.sequence, entry.backend,
                  entry.operation);
}

}  // namespace

Result<FlightRecord> read_flight_record(std::string_view json, const std::string& backend) {
  if (json.size() > kMaxFlightBytes)
    return Error{Code::kDataLoss, "a flight record of " + std::to_string(json.size()) + " bytes"};
  boost::json::parse_options options;
  options.max_depth = kMaxFlightDepth;
  options.allow_invalid_utf8 = true;
  boost::system::error_code error;
  const value parsed = boost::json::parse(json, error, {}, options);
  if (error) return Error{Code::kDataLoss, "not JSON: " + error.message()};
  const object* root = parsed.if_object();
  if (root == nullptr || !root->contains("version"))
    return Error{Code::kInvalidArgument, "not a flight record of torch"};
  FlightRecord record;
  record.version = text_of(*root, "version");
  if (const value* entries = root->if_contains("entries"); entries != nullptr) {
    if (!entries->is_array() || entries->as_array().size() > kMaxFlightEntries)
      return Error{Code::kInvalidArgument, "its entries are not a list"};
    for (const value& entry : entries->as_array())
      if (entry.is_object()) record.entries.push_back(entry_of(entry.as_object()));
  }
  add_members(*root, record);
  add_last_of_default(*root, backend, record);
  return record;
}

void merge(FlightRecord& record, FlightRecord more) {
  if (record.version.empty()) record.version = more.version;
  record.members.merge(more.members);
  for (const auto& [backend, last] : more.last_of_default)
    record.last_of_default[backend] = std::max(record.last_of_default[backend], last);
  std::set<std::tuple<std::string, bool, std::int64_t, std::string, std::string>> known;
  for (const FlightEntry& entry : record.entries) known.emplace(identity_of(entry));
  for (FlightEntry& entry : more.entries)
    if (known.emplace(identity_of(entry)).second) record.entries.push_back(std::move(entry));
  std::stable_sort(record.entries.begin(), record.entries.end(),
                   [](const FlightEntry& a, const FlightEntry& b) {
                     return a.created_unix_ns < b.created_unix_ns;
                   });
}

}  // namespace ivy
