// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/notice_board.h"

#include <algorithm>
#include <utility>

namespace ivy {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// The time for stopping the attempt: a quarter of the time between notice and deadline, but at most
// this. It contains the grace from TERM to KILL.
constexpr std::int64_t kMaxStopNs = 15 * kSecondNs;
// A host sends a few at most; more are ignored.
constexpr std::ptrdiff_t kMaxNotices = 16;

bool is_same(const Notice& notice, std::size_t host, const std::string& source,
             const std::string& reason) {
  return notice.host == host && notice.source == source && notice.reason == reason;
}

std::int64_t stop_before(std::int64_t deadline_ns, std::int64_t at_ns) {
  return deadline_ns - std::clamp<std::int64_t>((deadline_ns - at_ns) / 4, 0, kMaxStopNs);
}

}  // namespace

std::string notice_text(const Notice& notice, const std::string& host, std::int64_t now_ns) {
  std::string text = host;
  if (notice.deadline_ns) {
    const std::int64_t left_ns = std::max<std::int64_t>(*notice.deadline_ns - now_ns, 0);
    text += " will be stopped in " + std::to_string((left_ns + kSecondNs / 2) / kSecondNs) + " s (";
  } else {
    text += " should be left, it has no deadline (";
  }
  return text + notice.source + (notice.reason.empty() ? "" : ": " + notice.reason) + ")";
}

bool NoticeBoard::add(Notice notice) {
  std::ptrdiff_t of_host = 0;
  for (const Entry& entry : entries_) {
    if (is_same(entry.notice, notice.host, notice.source, notice.reason)) return false;
    of_host += entry.notice.host == notice.host ? 1 : 0;
  }
  if (of_host >= kMaxNotices) return false;
  entries_.push_back({std::move(notice)});
  return true;
}

bool NoticeBoard::withdraw(std::size_t host, const std::string& source, const std::string& reason) {
  return std::erase_if(entries_, [&](const Entry& entry) {
           return is_same(entry.notice, host, source, reason);
         }) > 0;
}

void NoticeBoard::forget(std::size_t host) {
  std::erase_if(entries_, [host](const Entry& entry) { return entry.notice.host == host; });
}

// Returns whether a notice that arrives now belongs to the wave of the last signal.
bool NoticeBoard::has_open_wave(const std::vector<NoticeHost>& hosts, std::int64_t now_ns) const {
  if (!signalled_at_ns_) return false;
  if (now_ns < *signalled_at_ns_ + notice_ns_) return true;
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.is_signalled && is_binding(entry.notice, hosts);
  });
}

bool NoticeBoard::needs_signal(const Entry& entry, const std::vector<NoticeHost>& hosts) const {
  return !entry.is_signalled && hosts[entry.notice.host].has_ranks &&
         (is_binding(entry.notice, hosts) || signals_on_advice_);
}

NoticeStep NoticeBoard::due(const std::vector<NoticeHost>& hosts, std::int64_t now_ns) {
  const bool has_wave = has_open_wave(hosts, now_ns);
  for (Entry& entry : entries_) {
    if (!needs_signal(entry, hosts)) continue;
    if (!has_wave) return NoticeStep::kSignal;
    entry.is_signalled = true;
  }
  const std::optional<std::int64_t> stop_at = stop_at_ns(hosts);
  return stop_at && now_ns >= *stop_at ? NoticeStep::kStop : NoticeStep::kNothing;
}

std::optional<std::int64_t> NoticeBoard::stop_at_ns(const std::vector<NoticeHost>& hosts) const {
  if (!signalled_at_ns_) return std::nullopt;
  std::optional<std::int64_t> earliest;
  for (const Entry& entry : entries_) {
    const Notice& notice = entry.notice;
    if (!hosts[notice.host].has_ranks || !is_binding(notice, hosts)) continue;
    const std::int64_t at = notice.deadline_ns ? stop_before(*notice.deadline_ns, notice.at_ns)
                                               : *signalled_at_ns_ + notice_ns_;
    earliest = std::min(earliest.value_or(at), at);
  }
  if (earliest && first_exit_ns_) earliest = std::min(*earliest, *first_exit_ns_ + notice_ns_);
  return earliest;
}

void NoticeBoard::signalled(std::int64_t now_ns) {
  signalled_at_ns_ = now_ns;
  first_exit_ns_.reset();
  for (Entry& entry : entries_) entry.is_signalled = true;
}

void NoticeBoard::rank_exited(std::int64_t now_ns) {
  if (signalled_at_ns_ && !first_exit_ns_) first_exit_ns_ = now_ns;
}

void NoticeBoard::end_wave() {
  signalled_at_ns_.reset();
  first_exit_ns_.reset();
  // The ranks of the next attempt do not know of the notices that remain.
  for (Entry& entry : entries_) entry.is_signalled = false;
}

std::vector<Notice> NoticeBoard::binding(const std::vector<NoticeHost>& hosts) const {
  std::vector<Notice> all;
  for (const Entry& entry : entries_) {
    const bool is_known = std::any_of(all.begin(), all.end(), [&entry](const Notice& other) {
      return other.host == entry.notice.host;
    });
    if (!is_known && is_binding(entry.notice, hosts)) all.push_back(entry.notice);
  }
  return all;
}

}  // namespace ivy
