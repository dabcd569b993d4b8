// Hosts that go away while a job lives: the end of the job, or, with --nnodes MIN:MAX, of this
// attempt. A lost host does not come back: its session is closed, its supervisor ends its workers
// when the lease is over, and the store has begun another generation by then.
//
// Thread: the loop's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/job/job_context.h"

namespace ivy {

class HostLosses {
 public:
  struct Handlers {
    // The ranks of a lost host: the others have to know.
    std::function<void(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss)>
        ranks_lost;
    // --on-failure: true: the other ranks go on without those of this host.
    std::function<bool(std::size_t index, const std::vector<std::uint32_t>& ranks,
                       const LauncherEnd& end)>
        goes_on_without;
    // A host that was awaited is gone, and the others are enough.
    std::function<void()> check_greeted;
  };
  HostLosses(JobContext& job, Handlers handlers) : job_(job), handlers_(std::move(handlers)) {}

  void lost(std::size_t index, HostLoss loss, const RemoteText& message);
  // Its supervisor has ended the job there, for a reason of its own. True: the attempt goes on
  // without further ado, or is about to end.
  bool left(std::size_t index, const RemoteText& reason);

  // Hosts that were lost in this attempt, and that the job can do without.
  const std::vector<LostMember>& members() const { return members_; }
  void begin_attempt() { members_.clear(); }
  // The first of them is why the job ends.
  void take_as_reason();
  // The job ends, and not because of these: what is not known about them has to be said.
  void conclude();
  // The workers of a host that fell silent live until its lease and their grace are over: what they
  // write to shared files must not meet the next attempt's.
  std::chrono::milliseconds pause_for(std::chrono::milliseconds usual) const;

 private:
  // False: the job cannot do without this host.
  bool lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause);
  bool goes_on_without(std::size_t index, const std::vector<std::uint32_t>& ranks,
                       const LauncherEnd& end, const RemoteText& message);
  void end_job(std::size_t index, LauncherEnd end, const RemoteText& message);

  JobContext& job_;
  Handlers handlers_;
  std::vector<LostMember> members_;
};

}  // namespace ivy
