// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/cloud_notices.h"

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>

namespace ivy {
namespace {

namespace json = boost::json;

constexpr char kInterruption[] = "/latest/meta-data/spot/instance-action";
constexpr char kRebalance[] = "/latest/meta-data/events/recommendations/rebalance";
constexpr char kPreempted[] = "/computeMetadata/v1/instance/preempted";
constexpr char kMaintenance[] = "/computeMetadata/v1/instance/maintenance-event";
constexpr char kScheduledEvents[] = "/metadata/scheduledevents?api-version=2020-07-01";
constexpr int kOk = 200;
constexpr int kNotFound = 404;
// A preempted machine of Google Cloud is stopped this long after the notice; one that is terminated
// for maintenance at least this long.
constexpr std::int64_t kPreemptionMs = 30'000;
constexpr std::int64_t kMaintenanceMs = 60'000;
// Events are few; more are not read.
constexpr std::size_t kMaxEvents = 32;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns the text of a member; empty if there is none.
std::string text_of(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains(json::string_view(name.data(), name.size()));
  const json::string* const text = value != nullptr ? value->if_string() : nullptr;
  return text != nullptr ? std::string(text->c_str(), text->size()) : "";
}

Error not_understood(const CloudRequest& request, std::string_view body) {
  return Error{Code::kDataLoss,
               "unexpected answer to " + request.path + ": " + std::string(body.substr(0, 200))};
}

std::string azure_reason(const std::string& type) {
  if (type == "Preempt") return "spot eviction";
  if (type == "Terminate") return "deletion";
  return type == "Redeploy" ? "move to another machine" : "reboot";
}

bool stops_machine(const std::string& type) {
  return type == "Preempt" || type == "Terminate" || type == "Redeploy" || type == "Reboot";
}

bool names_machine(const json::object& event, std::string_view name) {
  const json::value* const resources = event.if_contains("Resources");
  const json::array* const list = resources != nullptr ? resources->if_array() : nullptr;
  if (list == nullptr) return false;
  return std::any_of(list->begin(), list->end(), [name](const json::value& one) {
    const json::string* const text = one.if_string();
    return text != nullptr && std::string_view(text->data(), text->size()) == name;
  });
}

std::vector<CloudNotice> azure_notices(const json::array& events, std::string_view name,
                                       std::int64_t now_ms) {
  std::vector<CloudNotice> notices;
  for (const json::value& one : events) {
    const json::object* const event = one.if_object();
    if (event == nullptr || notices.size() >= kMaxEvents) continue;
    const std::string type = text_of(*event, "EventType");
    // A live migration freezes the machine for seconds, and stops nothing. Without a name of this
    // machine, every event counts.
    if (!stops_machine(type) || (!name.empty() && !names_machine(*event, name))) continue;
    const bool has_begun = text_of(*event, "EventStatus") == "Started";
    notices.push_back({"Azure", azure_reason(type),
                       has_begun ? now_ms : parse_utc_ms(text_of(*event, "NotBefore"))});
  }
  return notices;
}

}  // namespace

Cloud cloud_named(std::string_view name) {
  if (name == "aws") return Cloud::kAws;
  if (name == "gcp") return Cloud::kGcp;
  return name == "azure" ? Cloud::kAzure : Cloud::kNone;
}

Cloud cloud_of(std::string_view sys_vendor, std::string_view product_name,
               std::string_view board_vendor) {
  if (contains(sys_vendor, "Amazon EC2") || contains(board_vendor, "Amazon EC2"))
    return Cloud::kAws;
  if (contains(product_name, "Google Compute Engine")) return Cloud::kGcp;
  // Every virtual machine of Hyper-V has these texts; outside Azure, nothing answers at the
  // address.
  if (contains(sys_vendor, "Microsoft Corporation") && contains(product_name, "Virtual Machine"))
    return Cloud::kAzure;
  return Cloud::kNone;
}

CloudRequest aws_token_request() {
  return {"/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds",
          std::to_string(kTokenSeconds), true};
}

CloudRequest azure_name_request() {
  return {"/metadata/instance/compute/name?api-version=2021-02-01&format=text", "Metadata", "true"};
}

std::vector<CloudRequest> poll_requests(Cloud cloud, const std::string& token) {
  switch (cloud) {
    case Cloud::kNone:
      return {};
    case Cloud::kAws: {
      // Without a token, as IMDSv1 allows it.
      const std::string header = token.empty() ? "" : "X-aws-ec2-metadata-token";
      return {{kInterruption, header, token}, {kRebalance, header, token}};
    }
    case Cloud::kGcp:
      return {{kPreempted, "Metadata-Flavor", "Google"},
              {kMaintenance, "Metadata-Flavor", "Google"}};
    case Cloud::kAzure:
      return {{kScheduledEvents, "Metadata", "true"}};
  }
  return {};
}

Result<std::vector<CloudNotice>> read_answer(Cloud cloud, const CloudRequest& request, int status,
                                             std::string_view body, std::string_view name,
                                             std::int64_t now_ms) {
  using Notices = std::vector<CloudNotice>;
  // AWS has no such document while there is no notice, and some machines of Google Cloud have no
  // maintenance.
  if (status == kNotFound && (cloud == Cloud::kAws || request.path == kMaintenance))
    return Notices{};
  if (status != kOk)
    return Error{Code::kUnavailable, request.path + ": HTTP status " + std::to_string(status)};
  if (cloud == Cloud::kGcp) {
    if (request.path == kPreempted && body.starts_with("TRUE"))
      return Notices{{"Google Cloud", "preemption", now_ms + kPreemptionMs}};
    if (request.path == kMaintenance && body.starts_with("TERMINATE"))
      return Notices{{"Google Cloud", "host maintenance", now_ms + kMaintenanceMs}};
    return Notices{};
  }
  json::error_code error;
  const json::value parsed = json::parse(json::string_view(body.data(), body.size()), error);
  const json::object* const object = error ? nullptr : parsed.if_object();
  if (object == nullptr) return not_understood(request, body);
  if (cloud == Cloud::kAws) {
    if (request.path == kRebalance) return Notices{{"AWS", "rebalance recommendation"}};
    const std::string action = text_of(*object, "action");
    return Notices{{"AWS",
                    action == "terminate" || action.empty() ? "spot interruption"
                                                            : "spot interruption: " + action,
                    parse_utc_ms(text_of(*object, "time"))}};
  }
  const json::value* const events = object->if_contains("Events");
  if (events == nullptr || !events->is_array()) return not_understood(request, body);
  return azure_notices(events->get_array(), name, now_ms);
}

NoticeChanges::Changes NoticeChanges::take(std::vector<CloudNotice> present) {
  const auto has = [](const std::vector<CloudNotice>& all, const CloudNotice& one) {
    return std::any_of(all.begin(), all.end(), [&one](const CloudNotice& other) {
      return other.source == one.source && other.reason == one.reason;
    });
  };
  Changes changes;
  for (const CloudNotice& one : present)
    if (!has(known_, one) && !has(changes.added, one)) changes.added.push_back(one);
  for (const CloudNotice& one : known_)
    if (!has(present, one)) changes.withdrawn.push_back(one);
  known_ = std::move(present);
  return changes;
}

std::optional<std::int64_t> parse_utc_ms(const std::string& text) {
  for (const char* const form : {"%Y-%m-%dT%H:%M:%S", "%a, %d %b %Y %H:%M:%S"}) {
    std::tm time{};
    if (strptime(text.c_str(), form, &time) != nullptr)
      return static_cast<std::int64_t>(timegm(&time)) * 1000;
  }
  return std::nullopt;
}

}  // namespace ivy
