// SPDX-License-Identifier: Apache-2.0
// Follows the end of the Slurm allocation while a job runs: queries squeue for it, decides when to
// notify the ranks and when to stop the job, interprets signals, and requeues the job. The end of a
// Kubernetes pod is followed in the same way, from the TERM on that announces it.
//
// Thread: the loop's. Lifetime: from before the job to after it; stop() cancels operations in
// progress.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <string>

#include "launcher/slurm/allocation_end.h"
#include "launcher/slurm/slurm_allocation.h"
#include "launcher/streams/sequence.h"

namespace ivy {

// The job in the allocation: class Job.
class AllocationEvents {
 public:
  // The ranks' own processes are to get this signal before the end. by_slurm: those in the step
  // have it already.
  virtual void allocation_notice(int signal, bool by_slurm) = 0;
  // The ranks' own processes are to get this signal.
  virtual void allocation_signal(int signal) = 0;
  // The signal means the same as without Slurm.
  virtual void allocation_interrupt(int signal) = 0;
  // The time is up; grace() limits the stop.
  virtual void allocation_ends() = 0;
  // A line for the user.
  virtual void allocation_message(const std::string& line) = 0;

 protected:
  ~AllocationEvents() = default;
};

class AllocationWatch {
 public:
  // squeue and scontrol wait for a controller that may be busy or down; a job must not.
  static constexpr std::chrono::seconds kQueryDeadline{5};
  static constexpr std::chrono::seconds kRequeueDeadline{20};
  // Kubernetes' default of terminationGracePeriodSeconds, the time from TERM to KILL.
  static constexpr std::chrono::seconds kPodGrace{30};

  // asks: whether squeue may be queried; if not, the end is taken from the environment. tells:
  // prints the end as soon as it is known.
  AllocationWatch(boost::asio::io_context& loop, const SlurmAllocation& allocation,
                  EndSettings settings, bool queries, bool prints);
  // For a pod. settings.stop_before: its terminationGracePeriodSeconds.
  AllocationWatch(boost::asio::io_context& loop, EndSettings settings);

  void start(AllocationEvents& events);
  void stop();

  // ranks_have_it: Slurm has sent the signal to every process of the step, not only to its tasks.
  void received(int signal, SignalSource source, bool ranks_have_it = false);
  // A pod of the job, this one or that of another node, is being deleted: its ivyrun has received
  // TERM. The second call ends the job now.
  void pod_terminates();
  bool is_pod() const { return is_pod_; }
  // Returns the usual grace period, limited to the remaining time.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual) const;
  bool is_last_call() const;
  // Returns "Slurm job 1234" or "the pod", for people.
  std::string name() const { return is_pod_ ? "the pod" : allocation_.name(); }

  // Returns FailedPrecondition if the allocation ends before its time because it was cancelled: its
  // job must not run again.
  Awaitable<Result<void>> may_requeue(Sequence& sequence);
  // Runs `scontrol requeue`. On success Slurm ends this allocation, and us with it.
  Awaitable<Result<void>> requeue(Sequence& sequence);

 private:
  void query();
  void answered(const Result<std::string>& output);
  void learned(std::optional<std::int64_t> end_ms);
  void schedule();
  void step();

  boost::asio::io_context& loop_;
  const bool is_pod_;
  const SlurmAllocation allocation_;  // Empty for a pod.
  const EndSettings settings_;
  const bool queries_;
  const bool prints_;
  AllocationEnd end_;
  AllocationEvents* events_ = nullptr;  // Null before start().
  boost::asio::steady_timer timer_, retry_timer_;
  bool is_known_ = false;
  bool has_warned_ = false;
  bool stopped_ = false;
};

}  // namespace ivy
