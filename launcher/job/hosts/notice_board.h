// SPDX-License-Identifier: Apache-2.0
// The notices of hosts that will be stopped, and the steps that follow while the ranks run. Pure:
// time is an argument, in nanoseconds of the launcher's monotonic clock. Not thread-safe.
//
//   notice ── kSignal: --preempt-signal to all ranks ── time to save ── kStop: stop the attempt
//
// A notice without a deadline is advice (a drained node, a rebalance recommendation): its host may
// run on for days. So it stops an attempt only if the job can do without the host.
//
// Notices that arrive while the ranks are saving their state belong to the same wave: the ranks get
// one signal. The wave's attempt is stopped before its earliest deadline, or --notice-time after
// the signal if no deadline is known. Once a rank has exited, the others have --notice-time to
// follow, because they may only be waiting for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ivy {

struct Notice {
  std::size_t host = 0;  // Its index in the job.
  std::string source;    // "AWS", "Slurm"
  std::string reason;    // "spot interruption"; may be empty.
  std::optional<std::int64_t> deadline_ns = {};
  std::int64_t at_ns = 0;  // Its arrival.
};

// Returns "node02 will be stopped in 120 s (AWS: spot interruption)".
std::string notice_text(const Notice& notice, const std::string& host, std::int64_t now_ns);

// A host of the job, for the decision.
struct NoticeHost {
  bool has_ranks = false;  // In the present attempt.
  bool can_leave = false;  // The job can do without it.
};

enum class NoticeStep {
  kNothing,
  kSignal,  // Send --preempt-signal to the ranks, and tell signalled().
  kStop,    // The ranks have had their time: stop the attempt.
};

class NoticeBoard {
 public:
  // notice_ns: --notice-time. signals_on_advice: notices without a deadline are worth a signal even
  // if the job cannot do without the host, because the user has given --preempt-signal.
  NoticeBoard(std::int64_t notice_ns, bool signals_on_advice)
      : notice_ns_(notice_ns), signals_on_advice_(signals_on_advice) {}

  // Returns false if the notice is known.
  bool add(Notice notice);
  // Returns false if there is no such notice.
  bool withdraw(std::size_t host, const std::string& source, const std::string& reason);
  // The host no longer takes part.
  void forget(std::size_t host);
  bool empty() const { return entries_.empty(); }

  // The next step while ranks run. hosts: all of the job.
  NoticeStep due(const std::vector<NoticeHost>& hosts, std::int64_t now_ns);
  // When the attempt will be stopped; std::nullopt: not because of notices.
  std::optional<std::int64_t> stop_at_ns(const std::vector<NoticeHost>& hosts) const;
  // The ranks have been sent a signal, because of this board or of the end of their allocation.
  void signalled(std::int64_t now_ns);
  // A rank has exited; only the first exit after a signal counts.
  void rank_exited(std::int64_t now_ns);
  // The attempt has ended.
  void end_wave();

  // Notices because of which a host must leave the job before the next attempt, or else the job
  // ends; at most one for each host.
  std::vector<Notice> binding(const std::vector<NoticeHost>& hosts) const;

 private:
  struct Entry {
    Notice notice;
    bool is_signalled = false;  // It belongs to a wave.
  };

  bool is_binding(const Notice& notice, const std::vector<NoticeHost>& hosts) const {
    return notice.deadline_ns.has_value() || hosts[notice.host].can_leave;
  }
  bool needs_signal(const Entry& entry, const std::vector<NoticeHost>& hosts) const;
  bool has_open_wave(const std::vector<NoticeHost>& hosts, std::int64_t now_ns) const;

  const std::int64_t notice_ns_;
  const bool signals_on_advice_;
  std::vector<Entry> entries_;  // At most kMaxNotices for each host.
  std::optional<std::int64_t> signalled_at_ns_, first_exit_ns_;
};

}  // namespace ivy
