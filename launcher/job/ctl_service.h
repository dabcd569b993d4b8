// SPDX-License-Identifier: Apache-2.0
// Answers ivyctl: describes this job, signals and stops it. Opens the job's socket once the job has
// run long enough to be looked for; a job runs as well without one.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "launcher/job/job_context.h"
#include "launcher/job/job_socket.h"
#include "launcher/job/rank_events.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class CtlService final : private CtlRequests {
 public:
  CtlService(JobContext& job, RankEvents& ranks);

  // Opens the socket a little later: a job that ends sooner needs none.
  void schedule();
  // Says so when it cannot be opened.
  void open();
  // AlreadyExists: another launcher of this job runs.
  Result<void> listen();
  // Null: ivyctl does not find this job.
  JobSocket* socket() { return socket_.get(); }

  // FailedPrecondition: there is no store, or no workers run.
  Result<ctl::StoreDescription> describe_store() override;
  // Sends followers the end of the job, waits until they have it, and closes the socket.
  Awaitable<void> end(Sequence& sequence, const Outcome& outcome, const std::string& summary);

 private:
  ctl::JobDescription describe() override;
  Result<void> signal(const ctl::SignalJob& signal) override;
  Result<void> stop(const ctl::StopJob& stop) override;
  void describe_operations(Text done) override;
  void describe_stacks(const ctl::DescribeStacks& request, Text done) override;
  void describe_ranks(const ctl::DescribeRanks& request, Ranks done) override;

  JobContext& job_;
  RankEvents& ranks_;
  const pid_t parent_;  // Of this process, at the start.
  std::unique_ptr<JobSocket> socket_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
