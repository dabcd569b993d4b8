// SPDX-License-Identifier: Apache-2.0
// A step of opening a link, as it is shown while hosts are awaited. Pure; thread: any.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <utility>

#include "proto/contract/remote_text.h"

namespace ivy {

// How much of the bundle of ivy-node has been sent to a host.
struct UploadState {
  int percent = 0;
  std::string total;    // Size of the bundle: "5 MiB".
  double mb_per_s = 0;  // 0 in the first half second, when a rate means nothing.
};

// Returns "42 % of 5 MiB, 1.3 MB/s". percent: "42", or "7-50" for several hosts.
std::string upload_text(const std::string& percent, const std::string& total, double mb_per_s);

struct LinkStep {
  RemoteText text;  // "ssh: connecting", "sending ivy-node".
  std::string fix;  // Advice if the host is still at this step in the end; may be empty.
  std::optional<UploadState> upload;  // Set while the bundle is being sent.

  LinkStep() = default;
  template <std::convertible_to<RemoteText> Text>
  LinkStep(Text&& step, std::string advice = {})  // NOLINT: implicit by intention
      : text(std::forward<Text>(step)), fix(std::move(advice)) {}

  bool empty() const { return text.empty(); }
  // Returns the step with its figures: "sending ivy-node (42 % of 5 MiB, 1.3 MB/s)".
  RemoteText whole_text() const;
};

// Returns a step in which the bundle is sent to a host, such as "agent: sending ivy-node".
LinkStep sending_step(RemoteText text, std::optional<UploadState> upload = std::nullopt);

}  // namespace ivy
