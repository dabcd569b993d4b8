// SPDX-License-Identifier: Apache-2.0
// Warnings of an early end: of an allocation (Slurm), of a pod, or of hosts (../host_notices.h).
// Sends the ranks one signal for each wave of warnings, does not count their exits as failures
// then, and puts the job back into the queue (--requeue, Slurm). Thread: the loop's.
#pragma once

#include <string>

#include "launcher/job/core/job_context.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class Preemption {
 public:
  explicit Preemption(JobContext& job) : job_(job) {}

  // Slurm has sent a signal to the step of a host.
  void step_signalled(int signal, bool ranks_have_it);
  // The allocation is about to end: sends the ranks this signal, unless the scheduler has sent it
  // to them (by_scheduler) or they have been warned already.
  void give_notice(int signal, bool by_scheduler);
  // Hosts will be stopped: sends the ranks --preempt-signal, unless they have been warned already.
  // what: "node02 will be stopped (...)". next: the consequence, for the user.
  void warn_ranks(const std::string& what, const std::string& next);
  // The ranks have been warned in this wave.
  bool has_notice() const { return notice_signal_ != 0; }
  bool ends_with_allocation() const { return ends_with_allocation_; }
  // Whether the group runs again after the present wave, without the hosts concerned.
  void set_group_continues(bool continues) { group_continues_ = continues; }
  // The ranks have been warned, and the job ends with them.
  bool ends_job() const { return has_notice() && !group_continues_; }
  // The warning is no longer valid; the ranks cannot know.
  void withdraw();
  // The attempt has ended.
  void end_wave();
  // Makes a host that will be stopped the reason for the job's end.
  void end_job(const std::string& what);
  LauncherEnd end_of(const std::string& what) const;
  // The allocation's time is up: stops the job.
  void end_with_allocation();
  // Decides whether a warning explains why a worker has ended, and marks such a worker as stopped.
  // Returns whether the job or the attempt ends because of it: then no worker is stopped because of
  // this one, and workers that are still saving their state have time until the end.
  bool explains(WorkerRecord& worker);
  // --requeue: requests it from Slurm if the job has ended because its allocation ends.
  Awaitable<void> requeue_if_due(Sequence& sequence, const Outcome& outcome);

 private:
  void preempted(std::int64_t at_ns);
  std::string name() const;
  bool is_last_call() const;

  JobContext& job_;
  int notice_signal_ = 0;  // The signal of the present wave; 0: none was sent.
  bool ends_with_allocation_ = false;
  bool group_continues_ = false;
  bool is_withdrawn_ = false;
  std::string what_;  // The host of the wave; empty: only the allocation ends.
};

}  // namespace ivy
