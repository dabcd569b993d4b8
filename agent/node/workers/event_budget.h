// SPDX-License-Identifier: Apache-2.0
// Decides which of the host's events are kept for a launcher that is unreachable, and which for
// another launcher that takes the job over. Both are bounded, however long the absence lasts. Pure;
// thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"
#include "proto/wire/link.h"

namespace ivy {

class EventBudget {
 public:
  // Failure texts and workers' reports take up at most half of what may wait for an
  // acknowledgement. The other half is for the events themselves: 4096 starts and exits take 1 MiB
  // of it.
  static constexpr std::uint64_t kMaxWordsBytes = link::kMaxUnacknowledgedBytes / 2;
  // Bound for news of ranks that leave and attach without end; beyond it the newest are sent later.
  static constexpr std::uint64_t kMaxNewsBytes = 4u << 20;

  // True if the launcher needs this event for the right verdict.
  static bool is_essential(const Event& event);

  // Returns the bytes to send while `waiting_bytes` wait for the launcher's acknowledgement.
  // Nothing: the event is news that must wait, and holds_news() is true from then on.
  std::optional<std::string> admit(const Event& event, std::uint64_t waiting_bytes);
  bool holds_news() const { return holds_news_; }
  // True if the newest news of each rank may be sent now; afterwards none are held.
  bool take_held_news(std::uint64_t waiting_bytes);

  // Keeps the essential events of every rank from now on. News are not kept: ControlServer::known()
  // has the newest of each rank.
  void keep_for_takeover() { keeps_ = true; }
  const std::vector<std::string>& kept() const { return kept_; }
  void forget_kept();

 private:
  void keep(const Event& event, std::string bytes);

  bool keeps_ = false;
  bool holds_news_ = false;
  std::vector<std::string> kept_;
  std::uint64_t kept_words_bytes_ = 0;
};

}  // namespace ivy
