// SPDX-License-Identifier: Apache-2.0
// The notices of the metadata services of AWS, Google Cloud and Azure: which requests to make, and
// the meaning of the answers. Pure; thread: any.
//
// Sources: "Spot Instance interruption notices" and "EC2 instance rebalance recommendations" (AWS),
// "Create and use preemptible VMs" and "Query the metadata server for maintenance event notices"
// (Google Cloud), "Scheduled Events for Linux VMs" (Azure).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

enum class Cloud { kNone, kAws, kGcp, kAzure };

// Parses the names of --watch-notices: "aws", "gcp", "azure".
Cloud cloud_named(std::string_view name);
// Returns the cloud of a machine with these texts in /sys/class/dmi/id.
Cloud cloud_of(std::string_view sys_vendor, std::string_view product_name,
               std::string_view board_vendor);

// One HTTP request to 169.254.169.254.
struct CloudRequest {
  std::string path;
  std::string header = {};  // Its only header besides Host; empty: none.
  std::string value = {};
  bool is_put = false;
};

// AWS: the request whose answer is a token for the others. Tokens are valid for kTokenSeconds.
inline constexpr int kTokenSeconds = 21'600;
CloudRequest aws_token_request();
// Returns the requests of one poll. token: AWS's; else ignored.
std::vector<CloudRequest> poll_requests(Cloud cloud, const std::string& token);
// Azure: the request for the name of this machine, by which events name the machines concerned.
CloudRequest azure_name_request();

// A notice, identified by all fields except the time.
struct CloudNotice {
  std::string source;  // "AWS"
  std::string reason;  // "spot interruption"
  // Wall clock; absent if the time is unknown. May be in the past.
  std::optional<std::int64_t> deadline_ms = {};
};

// Returns the notices in the answer to one of poll_requests(). status: HTTP's. name: azure_name.
// An error means that the answer is not understood.
Result<std::vector<CloudNotice>> read_answer(Cloud cloud, const CloudRequest& request, int status,
                                             std::string_view body, std::string_view name,
                                             std::int64_t now_ms);

// Compares polls: the notices that are new, and those that are no longer there.
class NoticeChanges {
 public:
  struct Changes {
    std::vector<CloudNotice> added;
    std::vector<CloudNotice> withdrawn;
  };
  Changes take(std::vector<CloudNotice> present);

 private:
  std::vector<CloudNotice> known_;
};

// Parses "2026-11-30T19:00:00Z" or "Mon, 30 Nov 2026 19:00:00 GMT".
std::optional<std::int64_t> parse_utc_ms(const std::string& text);

}  // namespace ivy
