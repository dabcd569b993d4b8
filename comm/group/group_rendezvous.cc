// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_rendezvous.h"

#include <algorithm>
#include <string>
#include <vector>

#include "comm/transports/liveness/failure_detector.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

// Longest wait at the store before the members are checked.
constexpr milliseconds kPollStep{100};
// The first member gives up at the deadline and stores that verdict; the others wait a little
// longer for it.
constexpr milliseconds kVerdictGrace{2'000};
constexpr const char* kSuccess = "well";
// The verdict if a member could not open another member's descriptor: retry with a named file.
constexpr const char* kByName = "by name";

class GroupRendezvous {
 public:
  GroupRendezvous(JobMember& job, const Membership& members, milliseconds timeout)
      : store_(*job.store()),
        members_(members),
        prefix_(job.key("members/" + members.name() + "/")),
        detector_(job.make_failure_detector(members.name(), members.members(), members.rank())),
        end_(steady_now() + timeout),
        timeout_(timeout) {
    for (const Member& member : members.members())
      ranks_ += std::to_string(member.world_rank) + " ";
  }

  const MaybeFailure& death() const { return death_; }

  Result<std::shared_ptr<SharedSegment>> run() {
    std::string verdict = IVY_TRY(attempt(false));
    if (verdict == kByName) verdict = IVY_TRY(attempt(true));
    if (verdict != kSuccess) return error_in(verdict);
    return segment_;
  }

 private:
  // Returns the verdict, which is the same for all members.
  Result<std::string> attempt(bool is_named) {
    prefix_ += is_named ? "named/" : "";
    segment_.reset();
    std::string error_text;
    const Result<void> shared = share(is_named);
    if (!shared.ok()) {
      if (shared.error().code != Code::kResourceExhausted) return shared.error();
      error_text = shared.error().message + " (" + members_.own_member().host_name + ")";
    }
    IVY_CHECK(store_.set(member_key(members_.rank()), ranks_ + "\n" + error_text));
    if (members_.rank() != 0) return wait_get("verdict", kVerdictGrace);
    const std::string verdict = IVY_TRY(judge(is_named));
    if (segment_ != nullptr) segment_->unlink_name();
    IVY_CHECK(store_.set(prefix_ + "verdict", verdict));
    // Keep the keys, because other members may still read the reason.
    if (verdict != kSuccess) return verdict;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      IVY_CHECK(store_.remove(member_key(rank)));
    }
    return verdict;
  }

  // The first rank of each host creates the memory and stores its path.
  Result<void> share(bool is_named) {
    const std::vector<std::int32_t>& local = members_.local_ranks();
    if (local.size() < 2) return {};
    const auto count = static_cast<std::uint32_t>(local.size());
    const std::string key = "memory/" + std::to_string(local.front());
    if (local.front() == members_.rank()) {
      Result<std::unique_ptr<SharedSegment>> made =
          is_named ? SharedSegment::create_named(count) : SharedSegment::create(count);
      IVY_CHECK(store_.set(prefix_ + key, made.ok() ? (*made)->path() : ""));
      segment_ = IVY_TRY(cannot_share(std::move(made)));
      return {};
    }
    const std::string path = IVY_TRY(wait_get(key, milliseconds(0)));
    // If the path is empty, the first rank reports why.
    if (!path.empty()) {
      segment_ = IVY_TRY(cannot_share(SharedSegment::attach_path(path, count)));
      if (is_named) segment_->unlink_name();
    }
    return {};
  }

  static Result<std::unique_ptr<SharedSegment>> cannot_share(
      Result<std::unique_ptr<SharedSegment>> made) {
    if (made.ok()) return made;
    return Error{Code::kResourceExhausted, made.error().message};
  }

  // Rank 0 of the group reads every member's record. A timeout also becomes a verdict.
  Result<std::string> judge(bool is_named) {
    std::string verdict = kSuccess;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      const Result<std::string> announcement = wait_get(member_name(rank), milliseconds(0));
      if (!announcement.ok())
        return announcement.error().code == Code::kDeadlineExceeded ? missing() : announcement;
      const std::size_t line = announcement->find('\n');
      if (announcement->substr(0, line) != ranks_) {
        return "different: world rank " + std::to_string(members_.world_rank(rank)) +
               " creates group " + members_.name() + " of ranks " + announcement->substr(0, line) +
               "but world rank " + std::to_string(members_.own_member().world_rank) + " of " +
               ranks_;
      }
      if (verdict == kSuccess && line + 1 < announcement->size()) {
        verdict = is_named ? "memory: " + announcement->substr(line + 1) : kByName;
      }
    }
    return verdict;
  }

  std::string missing() {
    std::string names;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      const Result<bool> has_come = store_.check({member_key(rank)});
      if (has_come.ok() && *has_come) continue;
      names += (names.empty() ? "" : ", ") + std::to_string(members_.world_rank(rank));
    }
    return "missing: timed out: group " + members_.name() + " of world ranks " + ranks_ +
           "was not created within " + std::to_string(timeout_.count()) + " ms: world ranks " +
           names + " did not arrive";
  }

  static Error error_in(const std::string& verdict) {
    const std::size_t colon = verdict.find(": ");
    const std::string text = verdict.substr(colon + 2);
    if (verdict.starts_with("missing")) return Error{Code::kDeadlineExceeded, text};
    if (verdict.starts_with("memory")) return Error{Code::kResourceExhausted, text};
    return Error{Code::kFailedPrecondition, text,
                 "every member must pass the same ranks in the same order"};
  }

  // Named by world rank, so that members that disagree on the order find each other's records.
  std::string member_name(std::int32_t rank) const {
    return "member/" + std::to_string(members_.world_rank(rank));
  }
  std::string member_key(std::int32_t rank) const { return prefix_ + member_name(rank); }

  Result<std::string> wait_get(const std::string& name, milliseconds grace) {
    for (;;) {
      Result<std::string> found = store_.wait_get(prefix_ + name, kPollStep);
      if (found.ok() || found.error().code != Code::kDeadlineExceeded) return found;
      if (const MaybeFailure seen = detector_->check()) {
        // The dead rank may have written the awaited key before it died.
        found = store_.wait_get(prefix_ + name, milliseconds(1));
        if (found.ok()) return found;
        Failure death = *seen;
        set_text(death, std::string(seen->text) + " (group " + members_.name() + ")");
        members_.add_host(death);
        death_ = death;
        return Error{static_cast<Code>(seen->code), death.text};
      }
      if (steady_now() >= end_ + grace) {
        return Error{Code::kDeadlineExceeded,
                     "timed out: group " + members_.name() + " of world ranks " + ranks_ +
                         "was not created within " + std::to_string(timeout_.count()) +
                         " ms: its first rank did not respond",
                     "check that all these ranks create it"};
      }
    }
  }

  store::Client& store_;
  const Membership& members_;
  std::string prefix_;
  std::string ranks_;
  const std::unique_ptr<FailureDetector> detector_;
  const std::chrono::steady_clock::time_point end_;
  const milliseconds timeout_;
  std::shared_ptr<SharedSegment> segment_;
  MaybeFailure death_;
};

}  // namespace

Result<std::shared_ptr<SharedSegment>> form_group_segment(JobMember& job, const Membership& members,
                                                          milliseconds timeout,
                                                          MaybeFailure& death) {
  if (members.size() == 1) return std::shared_ptr<SharedSegment>();
  GroupRendezvous rendezvous(job, members, timeout);
  Result<std::shared_ptr<SharedSegment>> segment = rendezvous.run();
  death = rendezvous.death();
  return segment;
}

}  // namespace ivy::comm
