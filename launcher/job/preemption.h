// SPDX-License-Identifier: Apache-2.0
// A job whose allocation ends: its ranks get a signal, their exits are no failure then, and the job
// is put back into the queue. Does nothing outside of an allocation. Thread: the loop's.
#pragma once

#include <string>

#include "launcher/job/job_context.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class Preemption {
 public:
  explicit Preemption(JobContext& job) : job_(job) {}

  // Slurm has sent a signal to a host's step.
  void step_signalled(int signal, bool ranks_have_it);
  // by_scheduler: the ranks have the signal already.
  void give_notice(int signal, bool by_scheduler);
  bool has_notice() const { return notice_signal_ != 0; }
  // The allocation's time is up: the job is stopped.
  void end_with_allocation();
  // Marks a worker that the notice or the allocation's end has ended as a victim. True if the job
  // ends with its allocation: no worker is stopped for this end then, and those that still write
  // their state have time until the last call.
  bool explains(WorkerRecord& worker);
  // --requeue: requests it from Slurm if the job ended because its allocation does.
  Awaitable<void> requeue_if_due(Sequence& sequence, const Outcome& outcome);

 private:
  void preempted(std::int64_t at_ns);
  std::string name() const;

  JobContext& job_;
  int notice_signal_ = 0;  // 0: the ranks have not been told.
};

}  // namespace ivy
