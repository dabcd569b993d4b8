#include "launcher/hang/flight_record.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>
#include <utility>

#include "launcher/hang/plain_json.h"
#include "launcher/hang/plain_pickle.h"

namespace ivy {
namespace {

using Kind = PlainValue::Kind;

// Sizes and names are shown to people.
constexpr std::size_t kMaxShownBytes = 200;
constexpr std::size_t kMaxFrames = 64;

std::string text_of(const PlainValue& parent, std::string_view key) {
  const PlainValue* value = parent.find(key);
  if (value == nullptr || value->kind != Kind::kText) return "";
  return value->text.substr(0, kMaxShownBytes);
}

// Numbers stand in some places as text.
std::int64_t number_of(const PlainValue& parent, std::string_view key) {
  const PlainValue* value = parent.find(key);
  if (value == nullptr) return 0;
  if (value->kind == Kind::kInteger || value->kind == Kind::kBool) return value->integer;
  return 0;
}

bool is_true(const PlainValue& parent, std::string_view key) { return number_of(parent, key) != 0; }

std::string shown(const PlainValue& parent, std::string_view key) {
  const PlainValue* value = parent.find(key);
  return value == nullptr ? "" : value->shown(kMaxShownBytes);
}

std::string types_of(const PlainValue& entry) {
  const PlainValue* types = entry.find("input_dtypes");
  if (types == nullptr || types->items.empty()) return "";
  // The type of the first tensor says enough.
  return types->items.front()->shown(kMaxShownBytes);
}

// "nccl:all_reduce" -> "nccl", "all_reduce"; "nccl:send 0->1" keeps its peers.
void set_operation(const PlainValue& value, FlightEntry& entry) {
  entry.operation = text_of(value, "profiling_name");
  const std::size_t colon = entry.operation.find(':');
  if (colon == std::string::npos) return;
  entry.backend = entry.operation.substr(0, colon);
  entry.operation.erase(0, colon + 1);
}

std::vector<FlightFrame> frames_of(const PlainValue& entry) {
  std::vector<FlightFrame> frames;
  const PlainValue* all = entry.find("frames");
  if (all == nullptr || all->kind != Kind::kList) return frames;
  for (const PlainPointer& frame : all->items) {
    if (frames.size() == kMaxFrames) break;
    frames.push_back(
        {text_of(*frame, "name"), text_of(*frame, "filename"), number_of(*frame, "line")});
  }
  return frames;
}

FlightEntry entry_of(const PlainValue& value) {
  FlightEntry entry;
  // (name, description); before version 2.2 the name alone.
  const PlainValue* group = value.find("process_group");
  if (group != nullptr && group->kind == Kind::kList && !group->items.empty()) {
    entry.group = group->items.front()->shown(kMaxShownBytes);
    if (group->items.size() > 1) entry.group_text = group->items[1]->shown(kMaxShownBytes);
  } else {
    entry.group = shown(value, "pg_id");
  }
  entry.is_point_to_point = is_true(value, "is_p2p");
  const char* key = value.find("collective_seq_id") != nullptr ? "collective_seq_id" : "seq_id";
  entry.sequence = number_of(value, entry.is_point_to_point ? "p2p_seq_id" : key);
  set_operation(value, entry);
  entry.sizes = shown(value, "input_sizes");
  entry.types = types_of(value);
  const std::string state = text_of(value, "state");
  entry.is_over = state == "completed" || is_true(value, "retired");
  entry.has_started = state != "scheduled";
  entry.created_unix_ns = number_of(value, "time_created_ns");
  entry.frames = frames_of(value);
  return entry;
}

constexpr PickleLimits kFlightLimits{kMaxFlightValues, kMaxFlightReferences, kMaxFlightDepth};

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

// Members by the name of their group. Gloo makes its groups known before they have a name.
void add_members(const PlainValue& root, FlightRecord& record) {
  const PlainValue* groups = root.find("pg_config");
  if (groups == nullptr || groups->kind != Kind::kDictionary) return;
  for (std::size_t i = 1; i < groups->items.size(); i += 2) {
    const std::string name = text_of(*groups->items[i], "name");
    const PlainValue* ranks = groups->items[i]->find("ranks");
    if (!name.empty() && ranks != nullptr && ranks->kind == Kind::kText)
      record.members[name] = ranks_of(ranks->text);
  }
}

// The number of a group is its own in each process, but for the default group's, which is the first
// one everywhere.
void add_last_of_default(const PlainValue& root, const std::string& backend, FlightRecord& record) {
  const PlainValue* groups = root.find("pg_status");
  if (groups == nullptr || groups->kind != Kind::kDictionary) return;
  const PlainValue* status = groups->find("0");
  if (status == nullptr) return;
  const std::string last = text_of(*status, "last_enqueued_collective");
  const std::int64_t number = number_of(*status, "last_enqueued_collective");
  // Entries know best what the backend calls itself.
  record.last_of_default[record.entries.empty() ? backend : record.entries.front().backend] =
      last.empty() ? number : std::strtoll(last.c_str(), nullptr, 10);
}

Result<FlightRecord> record_of(const PlainValue& root, const std::string& backend) {
  const PlainValue* entries = root.find("entries");
  if (root.kind != Kind::kDictionary || root.find("version") == nullptr)
    return Error{Code::kInvalidArgument, "it is not a flight record of torch's"};
  FlightRecord record;
  record.version = text_of(root, "version");
  const bool has_entries = entries != nullptr;
  if (has_entries && (entries->kind != Kind::kList || entries->items.size() > kMaxFlightEntries))
    return Error{Code::kInvalidArgument, "the entries of its flight record are no list"};
  for (std::size_t i = 0; has_entries && i < entries->items.size(); ++i)
    if (entries->items[i]->kind == Kind::kDictionary)
      record.entries.push_back(entry_of(*entries->items[i]));
  add_members(root, record);
  add_last_of_default(root, backend, record);
  return record;
}

Error too_large(std::string_view bytes) {
  return Error{Code::kDataLoss, "a flight record of " + std::to_string(bytes.size()) + " bytes"};
}

auto identity_of(const FlightEntry& entry) {
  return std::tie(entry.group, entry.is_point_to_point, entry.sequence, entry.backend,
                  entry.operation);
}

}  // namespace

Result<FlightRecord> read_flight_record(std::string_view pickle) {
  if (pickle.size() > kMaxFlightBytes) return too_large(pickle);
  return record_of(*IVY_TRY(read_plain_pickle(pickle, kFlightLimits)), "");
}

Result<FlightRecord> read_flight_json(std::string_view json, const std::string& backend) {
  if (json.size() > kMaxFlightBytes) return too_large(json);
  return record_of(*IVY_TRY(read_plain_json(json, kFlightLimits)), backend);
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
