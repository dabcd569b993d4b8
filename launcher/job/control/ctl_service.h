// SPDX-License-Identifier: Apache-2.0
// Answers ivyctl: describes, signals and stops this job. Opens the job's socket once the job has
// run for a moment; a job also runs without it.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "launcher/job/control/job_socket.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/ranks/rank_events.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class CtlService final : private CtlRequests {
 public:
  CtlService(JobContext& job, RankEvents& ranks);

  // Opens the socket a little later: a job that ends before needs none.
  void schedule();
  // Opens the socket now, and warns the user if that fails.
  void open();
  // Opens the socket of a job that is being taken over. AlreadyExists: another launcher of this job
  // is running.
  Result<void> listen();
  // Null if there is no socket; ivyctl then does not find this job.
  JobSocket* socket() { return socket_.get(); }

  // FailedPrecondition: the job has no store, or no workers run.
  Result<ctl::StoreDescription> describe_store() override;
  // Sends the end of the job to followers, waits until they have received it, and closes the
  // socket. cause: one line; empty: every rank exited with 0.
  Awaitable<void> end(Sequence& sequence, int exit_code, const std::string& cause);

 private:
  ctl::JobDescription describe() override;
  Result<void> signal(const ctl::SignalJob& signal) override;
  Result<void> stop(const ctl::StopJob& stop) override;
  void describe_operations(Text done) override;
  void describe_stacks(const ctl::DescribeStacks& request, Text done) override;
  void describe_ranks(const ctl::DescribeRanks& request, Ranks done) override;

  JobContext& job_;
  RankEvents& ranks_;
  const pid_t parent_;  // The parent of this process at the start.
  std::unique_ptr<JobSocket> socket_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
