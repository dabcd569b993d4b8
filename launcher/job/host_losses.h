// SPDX-License-Identifier: Apache-2.0
// Handles a host, or its supervisor, that is lost while a job runs: the job ends, or with
// --nnodes MIN:MAX this attempt ends, or with --on-failure shrink the job continues without the
// host's ranks. A lost host does not come back: its session is closed. Its supervisor stops its
// workers when the lease expires. A restart waits for that (pause_for()).
//
// Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/job/ranks/rank_events.h"

namespace ivy {

class HostLosses {
 public:
  HostLosses(JobContext& job, RankEvents& ranks) : job_(job), ranks_(ranks) {}

  // A host or its supervisor was lost: decides which of the three follows.
  void lost(std::size_t index, HostLoss loss, const RemoteText& message);
  // The supervisor has stopped the job on this host for a reason of its own. Returns whether the
  // job can do without the host.
  bool left(std::size_t index, const RemoteText& reason);

  // The host will be stopped, its ranks have been, and the job continues without it.
  void leaves(std::size_t index, LauncherEnd end, const std::string& cause);

  // With --nnodes MIN:MAX: hosts that were lost in this attempt, and that the job can do without.
  const std::vector<LostMember>& members() const { return members_; }
  void begin_attempt() { members_.clear(); }
  // Makes the first of members() the reason for the job's end.
  void take_as_reason();
  // Call when the job ends for another reason: reports that the workers of members() may still run.
  void report_lost_members();
  // Returns the pause before a restart, at least `usual`. The workers of a silent host run until
  // its lease and their grace are over, and must not write to shared files at the same time as the
  // next attempt.
  std::chrono::milliseconds pause_for(std::chrono::milliseconds usual) const;

 private:
  // Ends only this attempt. Returns false if the job cannot do without this host.
  bool lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause);
  // --on-failure shrink: continues with the other hosts' ranks. Returns false if that is
  // impossible.
  bool continues_without_host(std::size_t index, const std::vector<std::uint32_t>& ranks,
                              const LauncherEnd& end, const RemoteText& message);
  void end_job(std::size_t index, LauncherEnd end, const RemoteText& message);

  JobContext& job_;
  RankEvents& ranks_;
  std::vector<LostMember> members_;
};

}  // namespace ivy
