// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_rendezvous.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/transports/liveness/failure_detector.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Longest wait at the store before the members are checked.
constexpr milliseconds kPollStep{100};
// The first member gives up at the deadline and stores that verdict; the others wait a little
// longer for it.
constexpr milliseconds kVerdictGrace{2'000};

// How the ranks of a host open the memory that its first rank has created.
enum class Naming : std::uint8_t { kByDescriptor, kByFile };

Error invalid_record() {
  return {Code::kDataLoss, "the job's store has an invalid record of a new group"};
}

// The value of report/<W>: the ranks and the error, with a newline between them.
struct Report {
  std::string ranks;              // Ranks of the world, such as "0 4 7".
  std::string memory_error = {};  // Why this rank has no shared memory, or empty.

  std::string encoded() const { return ranks + "\n" + memory_error; }
  static Result<Report> decoded(const std::string& text) {
    const std::size_t end = text.find('\n');
    if (end == std::string::npos) return invalid_record();
    return Report{text.substr(0, end), text.substr(end + 1)};
  }
};

// The value of `verdict`: the word of its kind, a newline, and the text of the error.
struct Verdict {
  enum class Kind : std::uint8_t {
    kOk,
    kTryByFile,  // Some member could not share memory by a descriptor.
    kNoMemory,
    kMissing,    // Members did not arrive in time.
    kDifferent,  // Members passed different ranks.
  };
  Kind kind = Kind::kOk;
  std::string text = {};  // Empty unless it is an error.

  // In the order of Kind.
  static constexpr std::string_view kWords[] = {"ok", "by file", "no memory", "missing",
                                                "different"};
  std::string encoded() const {
    return std::string(kWords[static_cast<std::size_t>(kind)]) + "\n" + text;
  }
  static Result<Verdict> decoded(std::string_view text) {
    const auto found = std::find(std::begin(kWords), std::end(kWords), take_part(text, '\n'));
    if (found == std::end(kWords)) return invalid_record();
    return Verdict{static_cast<Kind>(found - std::begin(kWords)), std::string(text)};
  }

  // Requires that the verdict is an error: neither kOk nor kTryByFile.
  Error error() const {
    if (kind == Kind::kMissing) return Error{Code::kDeadlineExceeded, text};
    if (kind == Kind::kNoMemory) return Error{Code::kResourceExhausted, text};
    return Error{Code::kFailedPrecondition, text,
                 "every member must pass the same ranks in the same order"};
  }
};

class GroupRendezvous {
 public:
  GroupRendezvous(JobMember& job, const Membership& members, milliseconds timeout)
      : store_(*job.store()),
        members_(members),
        group_key_(job.key("members/" + members.name() + "/")),
        detector_(job.make_failure_detector(members.name(), members.members(), members.rank())),
        end_(steady_now() + timeout),
        timeout_(timeout) {
    std::vector<std::string> ranks;
    for (const Member& member : members.members())
      ranks.push_back(std::to_string(member.world_rank));
    ranks_ = joined(ranks, " ");
  }

  const MaybeFailure& death() const { return death_; }

  Result<std::shared_ptr<SharedSegment>> run() {
    Verdict verdict = IVY_TRY(attempt(Naming::kByDescriptor));
    if (verdict.kind == Verdict::Kind::kTryByFile) verdict = IVY_TRY(attempt(Naming::kByFile));
    if (verdict.kind != Verdict::Kind::kOk) return verdict.error();
    return segment_;
  }

 private:
  // Returns the verdict, which is the same for all members.
  Result<Verdict> attempt(Naming naming) {
    naming_ = naming;
    segment_.reset();
    Report report{ranks_};
    const Result<void> shared = share(report.memory_error);
    // This host's first rank is missing. The verdict says so, and may name other ranks as well.
    if (!shared.ok() && shared.error().code == Code::kDeadlineExceeded) return await_verdict();
    if (!shared.ok()) return shared.error();
    IVY_CHECK(store_.set(key_of("report", members_.rank()), report.encoded()));
    const Verdict verdict = IVY_TRY(is_first() ? give_verdict() : await_verdict());
    // Now no member of this host needs the name any longer.
    if (segment_ != nullptr) segment_->unlink_name();
    return verdict;
  }

  bool is_first() const { return members_.rank() == 0; }

  // Sets segment_, or `error` to the reason why it could not be created or opened. Neither is set
  // if this rank is alone on its host, or if the host's first rank will report why it has none.
  // Fails with DeadlineExceeded if that rank does not arrive.
  Result<void> share(std::string& error) {
    const std::vector<std::int32_t>& local = members_.local_ranks();
    if (local.size() < 2) return {};
    const auto count = static_cast<std::uint32_t>(local.size());
    const auto take = [&](Result<std::unique_ptr<SharedSegment>> found) {
      if (found.ok()) {
        segment_ = std::move(found).value();
      } else {
        error = found.error().message + " (" + members_.own_member().host_name + ")";
      }
    };
    const std::string memory_key = key_of("memory", local.front());
    if (local.front() == members_.rank()) {
      take(naming_ == Naming::kByFile ? SharedSegment::create_named(count)
                                      : SharedSegment::create(count));
      return store_.set(memory_key, segment_ != nullptr ? segment_->path() : "");
    }
    // Otherwise the verdict would name this rank as missing, too, if the host's first rank is.
    const std::string arrived_key = key_of("arrived", members_.rank());
    IVY_CHECK(store_.set(arrived_key, ""));
    const std::string path = IVY_TRY(await(memory_key, end_));
    if (!path.empty()) take(SharedSegment::attach_path(path, count));
    IVY_CHECK(store_.remove(arrived_key));
    return {};
  }

  Result<Verdict> give_verdict() {
    const Verdict verdict = IVY_TRY(judge());
    IVY_CHECK(store_.set(key("verdict"), verdict.encoded()));
    // Keep the reports of an error, from which a person can see more.
    if (verdict.kind != Verdict::Kind::kOk) return verdict;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      IVY_CHECK(store_.remove(key_of("report", rank)));
    }
    return verdict;
  }

  Result<Verdict> judge() {
    Verdict verdict;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      const Result<std::string> stored = await(key_of("report", rank), end_);
      if (!stored.ok() && stored.error().code == Code::kDeadlineExceeded) return missing();
      if (!stored.ok()) return stored.error();
      const Report report = IVY_TRY(Report::decoded(*stored));
      if (report.ranks != ranks_) {
        return Verdict{Verdict::Kind::kDifferent,
                       "world rank " + std::to_string(members_.world_rank(rank)) +
                           " creates group " + members_.name() + " of ranks " + report.ranks +
                           " but world rank " + std::to_string(members_.own_member().world_rank) +
                           " of " + ranks_};
      }
      if (verdict.kind != Verdict::Kind::kOk || report.memory_error.empty()) continue;
      verdict = naming_ == Naming::kByFile ? Verdict{Verdict::Kind::kNoMemory, report.memory_error}
                                           : Verdict{Verdict::Kind::kTryByFile};
    }
    return verdict;
  }

  Verdict missing() {
    std::vector<std::string> names;
    for (std::int32_t rank = 0; rank < members_.size(); ++rank) {
      if (!is_stored(key_of("report", rank)) && !is_stored(key_of("arrived", rank)))
        names.push_back(std::to_string(members_.world_rank(rank)));
    }
    return {Verdict::Kind::kMissing,
            timeout_text("world ranks " + joined(names, ", ") + " did not arrive")};
  }

  Result<Verdict> await_verdict() {
    const Result<std::string> stored = await(key("verdict"), end_ + kVerdictGrace);
    if (!stored.ok() && stored.error().code == Code::kDeadlineExceeded) {
      return Error{Code::kDeadlineExceeded,
                   timeout_text("world rank " + std::to_string(members_.world_rank(0)) +
                                ", its first rank, did not respond"),
                   "check that all these ranks create it"};
    }
    if (!stored.ok()) return stored.error();
    return Verdict::decoded(*stored);
  }

  std::string timeout_text(const std::string& reason) const {
    return "timed out: group " + members_.name() + " of world ranks " + ranks_ +
           " was not created within " + std::to_string(timeout_.count()) + " ms: " + reason;
  }

  std::string key(const std::string& name) const {
    return group_key_ + (naming_ == Naming::kByFile ? "named/" : "") + name;
  }
  // Has the world's rank, so that members that disagree on the order find each other's keys.
  std::string key_of(const std::string& kind, std::int32_t rank) const {
    return key(kind + "/" + std::to_string(members_.world_rank(rank)));
  }

  bool is_stored(const std::string& key) {
    const Result<bool> found = store_.check({key});
    return found.ok() && *found;
  }

  // Waits for a key. Fails with DeadlineExceeded after `end`, and with the death of a member, which
  // is also recorded in death_.
  Result<std::string> await(const std::string& key, TimePoint end) {
    for (;;) {
      Result<std::string> found = store_.wait_get(key, kPollStep);
      if (found.ok() || found.error().code != Code::kDeadlineExceeded) return found;
      if (const MaybeFailure seen = detector_->check()) {
        // The dead rank may have written the awaited key before it died.
        found = store_.wait_get(key, milliseconds(1));
        if (found.ok()) return found;
        Failure death = *seen;
        set_text(death, std::string(seen->text) + " (group " + members_.name() + ")");
        members_.add_host(death);
        death_ = death;
        return Error{static_cast<Code>(seen->code), death.text};
      }
      if (steady_now() >= end) return found;
    }
  }

  store::Client& store_;
  const Membership& members_;
  const std::string group_key_;  // Prefix of all keys.
  std::string ranks_;            // The members' ranks in the world, such as "0 4 7".
  const std::unique_ptr<FailureDetector> detector_;
  const TimePoint end_;
  const milliseconds timeout_;
  Naming naming_ = Naming::kByDescriptor;  // Of the current attempt.
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
