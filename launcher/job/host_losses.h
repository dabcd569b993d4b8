// SPDX-License-Identifier: Apache-2.0
// Handles a host, or its supervisor, that is lost while a job runs: the job ends, or with
// --nnodes MIN:MAX or --spares this attempt ends, or with --on-failure shrink the job continues
// without the host's ranks. A lost host does not come back: its session is closed. Its supervisor
// stops its workers when the lease expires. A restart waits for that (pause_for()).
//
// Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/growth.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/ranks/rank_events.h"

namespace ivy {

class HostLosses {
 public:
  HostLosses(JobContext& job, JobPlanner& planner, BringUp& bring_up, RankEvents& ranks,
             Growth& growth)
      : job_(job),
        planner_(planner),
        bring_up_(bring_up),
        ranks_(ranks),
        growth_(growth),
        replace_timer_(job.loop) {}

  // A host or its supervisor was lost: decides which of the three follows.
  void lost(std::size_t index, HostLoss loss, const RemoteText& message);
  // The supervisor has stopped the job on this host for a reason of its own. Returns whether the
  // job can do without the host.
  bool supervisor_stopped(std::size_t index, const RemoteText& reason);

  // The host will be stopped, its ranks have been, and the job continues without it.
  void leave_out_after_notice(std::size_t index, LauncherEnd end, const std::string& cause);

  // Hosts that were lost in this attempt, and that the job can do without.
  const std::vector<LostMember>& members() const { return members_; }
  void begin_attempt() {
    members_.clear();
    moved_.clear();
  }
  // Makes the first of members() the reason for the job's end.
  void take_as_reason();
  // Call when the job ends for another reason: reports that the workers of members() may still run.
  void report_lost_members();
  // Returns the pause before a restart, at least `usual`. The workers of a silent host run until
  // its lease and their grace are over, and must not write to shared files at the same time as the
  // next attempt.
  std::chrono::milliseconds pause_for(std::chrono::milliseconds usual) const;

 private:
  // A host without workers was lost.
  void lose_spare(std::size_t index, HostLoss loss, const RemoteText& message);
  // Ends only this attempt. Returns false if the job cannot do without this host.
  bool lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause);
  // --on-failure shrink: continues with the other hosts' ranks. Returns false if that is
  // impossible.
  bool continues_without_host(std::size_t index, const std::vector<std::uint32_t>& ranks,
                              const LauncherEnd& end, const RemoteText& message);
  // --on-failure replace: the others continue, and the ranks of this host start on a spare. Returns
  // false if that is impossible.
  bool replaces_host(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss,
                     const LauncherEnd& end, const RemoteText& message);
  void start_moved_ranks();
  std::chrono::milliseconds end_of_workers(std::size_t index, LauncherReason loss) const;
  void end_job(std::size_t index, LauncherEnd end, const RemoteText& message);

  JobContext& job_;
  JobPlanner& planner_;
  BringUp& bring_up_;
  RankEvents& ranks_;
  Growth& growth_;
  std::vector<LostMember> members_;
  // Ranks that replaces_host() has moved and that have not been started; their time has come at
  // moved_due_.
  std::vector<std::uint32_t> moved_;
  std::chrono::steady_clock::time_point moved_due_;
  boost::asio::steady_timer replace_timer_;
};

}  // namespace ivy
