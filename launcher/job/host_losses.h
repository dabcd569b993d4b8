// SPDX-License-Identifier: Apache-2.0
// Hosts that are lost while a job runs: the end of the job, or, with --nnodes MIN:MAX, of this
// attempt. A lost host does not come back: its session is closed, its supervisor kills its workers
// when the lease expires, and the store has begun another generation by then.
//
// Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/job_context.h"
#include "launcher/job/rank_events.h"

namespace ivy {

class HostLosses {
 public:
  HostLosses(JobContext& job, RankEvents& ranks, BringUp& bring_up)
      : job_(job), ranks_(ranks), bring_up_(bring_up) {}

  void lost(std::size_t index, HostLoss loss, const RemoteText& message);
  // The supervisor stopped the job on this host for a reason of its own. True: the job can do
  // without the host.
  bool left(std::size_t index, const RemoteText& reason);

  // Hosts that were lost in this attempt, and that the job can do without.
  const std::vector<LostMember>& members() const { return members_; }
  void begin_attempt() { members_.clear(); }
  // The first of them is why the job ends.
  void take_as_reason();
  // Call when the job ends for another reason: reports the hosts whose fate is unknown.
  void conclude();
  // Extends the pause before a restart: the workers of a silent host run until its lease and their
  // grace are over, and must not write to shared files beside the next attempt.
  std::chrono::milliseconds pause_for(std::chrono::milliseconds usual) const;

 private:
  // False: the job cannot do without this host.
  bool lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause);
  bool continues_without_host(std::size_t index, const std::vector<std::uint32_t>& ranks,
                              const LauncherEnd& end, const RemoteText& message);
  void end_job(std::size_t index, LauncherEnd end, const RemoteText& message);

  JobContext& job_;
  RankEvents& ranks_;
  BringUp& bring_up_;
  std::vector<LostMember> members_;
};

}  // namespace ivy
