// SPDX-License-Identifier: Apache-2.0
// PageDetector reads the deaths that the supervisor writes to the status page. ProcessDetector
// polls the processes of this host instead, if there is no supervisor. InterruptibleDetector wraps
// either.
#include "comm/transports/liveness/failure_detectors.h"

#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/transports/liveness/interrupt.h"
#include "comm/transports/liveness/process_state.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using comm_status::RankState;
using comm_status::RankStatus;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A rank that finalizes causes no event in the page, so the page is scanned again at this interval.
constexpr milliseconds kRescan{100};
constexpr milliseconds kProcessPoll{20};
// A rank may finalize as soon as its own last operation is done, while others still receive their
// part of it. A wait for that rank fails only after this time. It is less than
// FailureDetector::kVerdictTime, so that the rank's leaving explains a connection that it closed.
constexpr std::chrono::nanoseconds kLeftGrace = milliseconds(150);

std::string ending_of(const RankStatus& status) {
  switch (status.state) {
    case RankState::kAlive:
      return "is alive";
    case RankState::kLeft:
      return "has finalized";
    case RankState::kExited:
      return "exited with code " + std::to_string(status.code);
    case RankState::kSignalled: {
      const char* const name = strsignal(status.code);
      const std::string why = status.out_of_memory ? ", out of memory" : "";
      return "was killed by signal " + std::to_string(status.code) + " (" +
             (name != nullptr ? name : "unknown") + why + ")";
    }
    case RankState::kDied:
      return "died";
    case RankState::kHostLost:
      return "was lost with its host";
  }
  return "is no longer running";
}

FailureKind kind_of(std::uint8_t report) {
  for (const auto& [kind, reported] : kReportKinds) {
    if (reported == static_cast<control::ReportKind>(report)) return kind;
  }
  return FailureKind::kOther;
}

class PageDetector final : public FailureDetector {
 public:
  PageDetector(const comm_status::StatusPage& page, std::string communicator,
               std::vector<Member> members, std::int32_t self)
      : page_(page),
        communicator_(std::move(communicator)),
        members_(std::move(members)),
        self_(self) {}

  const std::atomic<std::uint32_t>* wake_word() const override { return &page_.event_count(); }
  milliseconds poll_interval() const override { return kRescan; }

  using FailureDetector::check;
  MaybeFailure check(std::int32_t waited_for) override {
    if (found_) return found_;
    const std::uint32_t event_count = page_.event_count().load(std::memory_order_acquire);
    const auto now = steady_now();
    if (event_count == seen_event_count_ && now - seen_at_ < kRescan) return std::nullopt;
    seen_event_count_ = event_count;
    seen_at_ = now;
    // A death comes first, because it explains what others report about it.
    found_ = find_ended(RankEnd::kDied, kAnyRank);
    if (!found_) found_ = find_report();
    // Ranks that left are reported last and not kept, because a caller that does not need such a
    // rank must still learn of a later death.
    return found_ ? found_ : find_ended(RankEnd::kFinalized, waited_for);
  }

  MaybeFailure check_now(std::int32_t waited_for) override {
    seen_at_ = {};  // Scan now, because ranks may have left since the last check.
    return check(waited_for);
  }

  bool has_left(std::int32_t rank) override {
    const RankStatus status = status_of(page_, members_[static_cast<std::size_t>(rank)]);
    return status.state == RankState::kLeft && !has_just_left(status);
  }

 private:
  enum class RankEnd : std::uint8_t { kDied, kFinalized };

  // Returns the failure of the first rank that ended in that way.
  MaybeFailure find_ended(RankEnd end, std::int32_t waited_for) const {
    const bool left = end == RankEnd::kFinalized;
    MaybeFailure first;
    std::uint64_t first_ns = ~std::uint64_t{0};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (static_cast<std::int32_t>(i) == self_) continue;
      if (waited_for != kAnyRank && waited_for != static_cast<std::int32_t>(i)) continue;
      const RankStatus status = status_of(page_, members_[i]);
      if (status.state == RankState::kAlive || status.when_ns >= first_ns) continue;
      if ((status.state == RankState::kLeft) != left || (left && has_just_left(status))) continue;
      first = death_of(members_[i], status);
      first_ns = status.when_ns;
    }
    return first;
  }

  // Returns -1 if it is not a rank of the communicator.
  std::int32_t world_rank_of(std::uint32_t job_rank) const {
    const auto member =
        std::find_if(members_.begin(), members_.end(),
                     [job_rank](const Member& each) { return each.job_rank == job_rank; });
    return member == members_.end() ? -1 : member->world_rank;
  }

  // Returns true within kLeftGrace after the rank finalized, or after this detector was created:
  // the rank may have finalized an earlier world and be about to join this one.
  bool has_just_left(const RankStatus& status) const {
    const std::chrono::nanoseconds left_at(status.when_ns);
    return steady_now().time_since_epoch() < std::max(left_at, made_at_) + kLeftGrace;
  }

  MaybeFailure find_report() {
    for (const comm_status::PageReport& report : page_.reports_after(seen_report_)) {
      seen_report_ = report.number;
      if (report.communicator != communicator_) continue;
      Failure failure = make_failure(kind_of(report.kind), report.text);
      failure.rank = world_rank_of(report.blamed);
      failure.sequence = report.sequence;
      return failure;
    }
    return std::nullopt;
  }

  const comm_status::StatusPage page_;
  const std::string communicator_;
  const std::vector<Member> members_;
  const std::int32_t self_;
  const std::chrono::nanoseconds made_at_ = steady_now().time_since_epoch();
  std::uint32_t seen_event_count_ = 0;
  std::uint64_t seen_report_ = 0;
  steady_clock::time_point seen_at_;
  MaybeFailure found_;  // Never changes once it is set.
};

class ProcessDetector final : public FailureDetector {
 public:
  ProcessDetector(std::vector<Member> members, std::int32_t self, const LeftRanks* left)
      : members_(std::move(members)), left_(left) {
    const std::uint32_t host = members_[static_cast<std::size_t>(self)].host;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].host != host || static_cast<std::int32_t>(i) == self) continue;
      const long descriptor = syscall(SYS_pidfd_open, members_[i].pid, 0);
      watched_.push_back({static_cast<int>(descriptor), POLLIN, 0});
      Watched watched;
      watched.member = i;
      watched.has_ended = descriptor < 0 && errno == ESRCH;
      // pidfd_open() does not exist before Linux 5.3, or no descriptor is left.
      watched.is_polled = descriptor < 0 && errno != ESRCH;
      if (watched.is_polled) watched.start = process_start(members_[i].pid);
      watched_members_.push_back(watched);
    }
  }
  ~ProcessDetector() override {
    for (const pollfd& process : watched_) {
      if (process.fd >= 0) close(process.fd);
    }
  }

  const std::atomic<std::uint32_t>* wake_word() const override { return nullptr; }
  milliseconds poll_interval() const override { return kProcessPoll; }

  using FailureDetector::check;
  // Ranks that left are reported last and not kept, because a caller that does not need such a rank
  // must still learn of a later death.
  MaybeFailure check(std::int32_t waited_for) override {
    if (found_) return found_;
    poll(watched_.data(), watched_.size(), 0);
    MaybeFailure left;
    for (std::size_t i = 0; i < watched_.size() && !found_; ++i) {
      Watched& watched = watched_members_[i];
      if (watched_[i].revents != 0) watched.has_ended = true;
      if (watched.is_polled && has_process_ended(members_[watched.member].pid, watched.start))
        watched.has_ended = true;
      if (!has_finalized(watched)) {
        if (watched.has_ended) found_ = ending_of(watched, RankState::kDied);
      } else if (is_awaited_but_ended(watched, waited_for) && !left) {
        left = ending_of(watched, RankState::kLeft);
      }
    }
    return found_ ? found_ : left;
  }

  bool has_left(std::int32_t rank) override {
    for (Watched& watched : watched_members_) {
      if (static_cast<std::int32_t>(watched.member) != rank) continue;
      return has_finalized(watched) && is_awaited_but_ended(watched, rank);
    }
    return false;  // The rank is on another host.
  }

 private:
  struct Watched {
    std::size_t member = 0;
    bool has_ended = false;
    bool is_polled = false;   // It has no pidfd, so its state is read from /proc.
    std::uint64_t start = 0;  // Its process_start(), if is_polled is set.
    std::optional<steady_clock::time_point> left_at;  // When the rank was first seen to have left.
  };

  bool has_finalized(const Watched& watched) const {
    return left_ != nullptr && left_->has_left(members_[watched.member].world_rank);
  }

  // Returns whether the caller waits for that rank, which has finalized and whose kLeftGrace has
  // expired.
  static bool is_awaited_but_ended(Watched& watched, std::int32_t waited_for) {
    const auto now = steady_now();
    if (!watched.left_at) watched.left_at = now;
    const bool is_waited_for =
        waited_for == kAnyRank || waited_for == static_cast<std::int32_t>(watched.member);
    return is_waited_for && now - *watched.left_at >= kLeftGrace;
  }

  Failure ending_of(const Watched& watched, RankState state) const {
    RankStatus status;
    status.state = state;
    return death_of(members_[watched.member], status);
  }

  const std::vector<Member> members_;
  const LeftRanks* const left_;
  std::vector<pollfd> watched_;
  std::vector<Watched> watched_members_;  // In the order of watched_.
  MaybeFailure found_;                    // Never changes once it is set.
};

// An interrupt concerns only the interrupted thread's call, so it is not kept.
class InterruptibleDetector final : public FailureDetector {
 public:
  InterruptibleDetector(std::unique_ptr<FailureDetector> inner, const Failure& failure)
      : inner_(std::move(inner)), failure_(failure) {}

  const std::atomic<std::uint32_t>* wake_word() const override { return inner_->wake_word(); }
  milliseconds poll_interval() const override {
    const milliseconds interval = inner_->poll_interval();
    return InterruptScope::is_any() ? std::min(interval, InterruptScope::kPeriod) : interval;
  }

  using FailureDetector::check;
  MaybeFailure check(std::int32_t waited_for) override {
    return InterruptScope::is_to_end() ? failure_ : inner_->check(waited_for);
  }
  MaybeFailure check_now(std::int32_t waited_for) override {
    return InterruptScope::is_to_end() ? failure_ : inner_->check_now(waited_for);
  }
  bool has_left(std::int32_t rank) override { return inner_->has_left(rank); }

 private:
  const std::unique_ptr<FailureDetector> inner_;
  const Failure failure_;
};

}  // namespace

std::unique_ptr<FailureDetector> make_interruptible_detector(std::unique_ptr<FailureDetector> inner,
                                                             const Failure& failure) {
  return std::make_unique<InterruptibleDetector>(std::move(inner), failure);
}

RankStatus status_of(const comm_status::StatusPage& page, const Member& member) {
  RankStatus status = page.rank(member.job_rank);
  if (status.rejoins == member.incarnation) return status;
  // The supervisor does not know this process yet; the row describes an earlier process.
  if (status.rejoins < member.incarnation) return RankStatus{};
  status.state = status.last_end == RankState::kAlive ? RankState::kDied : status.last_end;
  status.pid = member.pid;
  return status;
}

Failure death_of(const Member& member, const RankStatus& status) {
  const bool is_host = status.state == RankState::kHostLost;
  const std::int32_t pid = status.pid != 0 ? status.pid : member.pid;
  Failure failure = make_failure(
      is_host ? FailureKind::kHostLost : FailureKind::kRankDied,
      name_of_rank(member.world_rank, member.host_name, pid) + " " + ending_of(status));
  failure.rank = member.world_rank;
  failure.pid = pid;
  if (status.state == RankState::kSignalled) failure.signal = status.code;
  if (status.state == RankState::kExited) failure.exit_code = status.code;
  set_host(failure, member.host_name);
  return failure;
}

std::string name_of_rank(std::int32_t world_rank, const std::string& host, std::int32_t pid) {
  std::string text = "rank " + std::to_string(world_rank) + " (" + host;
  if (pid != 0) text += ", pid " + std::to_string(pid);
  return text + ")";
}

std::unique_ptr<FailureDetector> make_page_detector(const comm_status::StatusPage& page,
                                                    std::string communicator,
                                                    std::vector<Member> members,
                                                    std::int32_t self) {
  return std::make_unique<PageDetector>(page, std::move(communicator), std::move(members), self);
}

std::unique_ptr<FailureDetector> make_process_detector(std::vector<Member> members,
                                                       std::int32_t self, const LeftRanks* left) {
  return std::make_unique<ProcessDetector>(std::move(members), self, left);
}

}  // namespace ivy::comm
