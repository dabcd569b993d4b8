// What of the host's events may wait for a launcher that is away, and what is kept for another one
// that takes the job over; both have a bound, however long either takes. Pure; thread: the loop's.
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
  // Of what may wait for an acknowledgement, words about a failure and reports of workers take up
  // to one half. The other half is for the events themselves: 4096 starts and exits take 1 MiB of
  // it.
  static constexpr std::uint64_t kMaxWordsBytes = link::kMaxUnacknowledgedBytes / 2;
  // News of ranks that leave and attach again without end, beyond which the newest are told later.
  static constexpr std::uint64_t kMaxNewsBytes = 4u << 20;

  // A launcher that never hears of it can never come to the right verdict.
  static bool is_essential(const Event& event);

  // The bytes to send while `waiting_bytes` wait for the launcher's acknowledgement. Nothing: they
  // are news that must wait, which holds_news() then says.
  std::optional<std::string> admit(const Event& event, std::uint64_t waiting_bytes);
  bool holds_news() const { return holds_news_; }
  // The newest of each rank may be told now; afterwards none are held.
  bool take_held_news(std::uint64_t waiting_bytes);

  // From now on what every rank has come to is kept. Not the news: ControlServer::known() has the
  // newest of each rank.
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
