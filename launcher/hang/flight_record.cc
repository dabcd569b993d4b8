#include "launcher/hang/flight_record.h"

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

// "nccl:all_reduce" -> "all_reduce"; "nccl:send 0->1" keeps its peers.
std::string operation_of(const PlainValue& entry) {
  const std::string name = text_of(entry, "profiling_name");
  const std::size_t colon = name.find(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
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
  entry.operation = operation_of(value);
  entry.sizes = shown(value, "input_sizes");
  entry.types = types_of(value);
  const std::string state = text_of(value, "state");
  entry.is_over = state == "completed" || is_true(value, "retired");
  entry.has_started = state != "scheduled";
  entry.created_unix_ns = number_of(value, "time_created_ns");
  entry.frames = frames_of(value);
  return entry;
}

}  // namespace

Result<FlightRecord> read_flight_record(std::string_view pickle) {
  if (pickle.size() > kMaxFlightBytes)
    return Error{Code::kDataLoss, "a flight record of " + std::to_string(pickle.size()) + " bytes"};
  const PlainPointer root =
      IVY_TRY(read_plain_pickle(pickle, {kMaxFlightValues, kMaxFlightReferences, kMaxFlightDepth}));
  const PlainValue* entries = root->find("entries");
  if (root->kind != Kind::kDictionary || root->find("version") == nullptr)
    return Error{Code::kInvalidArgument, "it is no flight record of torch's"};
  FlightRecord record;
  record.version = text_of(*root, "version");
  if (entries == nullptr) return record;
  if (entries->kind != Kind::kList || entries->items.size() > kMaxFlightEntries)
    return Error{Code::kInvalidArgument, "the entries of its flight record are no list"};
  for (const PlainPointer& entry : entries->items)
    if (entry->kind == Kind::kDictionary) record.entries.push_back(entry_of(*entry));
  return record;
}

}  // namespace ivy
