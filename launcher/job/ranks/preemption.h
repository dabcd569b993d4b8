// SPDX-License-Identifier: Apache-2.0
// The end of an allocation (Slurm) or of a pod: gives the ranks notice by a signal, does not count
// their exits as failures then, and puts the job back into the queue (--requeue, Slurm). Does
// nothing elsewhere. Thread: the loop's.
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
  // to them (by_scheduler).
  void give_notice(int signal, bool by_scheduler);
  // The ranks have been given notice.
  bool has_notice() const { return notice_signal_ != 0; }
  // The allocation's time is up: stops the job.
  void end_with_allocation();
  // Decides whether the notice or the end of the allocation explains why a worker has ended, and
  // marks such a worker as stopped. Returns whether the job ends with its allocation: then no
  // worker is stopped because of this one, and workers that are still saving their state have time
  // until the allocation ends.
  bool explains(WorkerRecord& worker);
  // --requeue: requests it from Slurm if the job has ended because its allocation ends.
  Awaitable<void> requeue_if_due(Sequence& sequence, const Outcome& outcome);

 private:
  void preempted(std::int64_t at_ns);
  std::string name() const;

  JobContext& job_;
  int notice_signal_ = 0;  // The signal of the notice; 0: none was given.
};

}  // namespace ivy
