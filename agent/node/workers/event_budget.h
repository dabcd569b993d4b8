// SPDX-License-Identifier: Apache-2.0
// Decides which of the host's events are kept while the launcher is unreachable, and which are kept
// for another launcher that may take the job over. Both sets are bounded for any length of absence.
// Pure; thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy {

class EventBudget {
 public:
  // Failure texts and workers' reports use at most half of the bytes that may wait for an
  // acknowledgement. The other half is for the events themselves: 4096 starts and exits take 1 MiB
  // of it.
  static constexpr std::uint64_t kMaxTextBytes = session::kMaxUnacknowledgedBytes / 2;
  // Limit for RankUpdates of ranks that leave and attach repeatedly; beyond it only the newest
  // state is sent, later.
  static constexpr std::uint64_t kMaxUpdateBytes = 4u << 20;

  // Returns true if the launcher needs this event for the correct verdict.
  static bool is_essential(const Event& event);

  // Returns the bytes to send while `waiting_bytes` wait for the launcher's acknowledgement.
  // Returns std::nullopt if the event is RankUpdates that must wait; holds_updates() is then true.
  std::optional<std::string> admit(const Event& event, std::uint64_t waiting_bytes);
  bool holds_updates() const { return holds_updates_; }
  // Returns true if held RankUpdates may be sent now (the newest of each rank), and resets
  // holds_updates().
  bool take_held_updates(std::uint64_t waiting_bytes);

  // From now on keeps the essential events of every rank. RankUpdates are not kept, because
  // ControlServer::known() has the newest of each rank.
  void keep_for_takeover() { keeps_ = true; }
  const std::vector<std::string>& kept() const { return kept_; }
  void forget_kept();

 private:
  void keep(const Event& event, std::string bytes);

  bool keeps_ = false;
  bool holds_updates_ = false;
  std::vector<std::string> kept_;
  std::uint64_t kept_text_bytes_ = 0;
};

}  // namespace ivy
