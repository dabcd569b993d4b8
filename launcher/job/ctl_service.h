// What ivyctl is told of this job and may ask of it. Opens the job's socket when the job has lived
// long enough to be found; a job runs as well without one.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "launcher/job/job_context.h"
#include "launcher/job/job_socket.h"

namespace ivy {

class CtlService {
 public:
  using Text = std::function<void(const std::string& text)>;
  struct Handlers {
    std::function<void(Text done)> describe_operations;
    std::function<void(const ctl::DescribeStacks& request, Text done)> describe_stacks;
    // Stops the workers that are being stopped already, with this grace.
    std::function<void(std::chrono::milliseconds grace)> shorten_grace;
    std::function<int()> max_attempts;
    std::function<void(const ctl::DescribeRanks& request,
                       std::function<void(const ctl::RanksDescription&)> done)>
        describe_ranks;
    // Sentences for JobDescription, from RankLosses::lines().
    std::function<std::vector<std::string>()> losses;
  };
  CtlService(JobContext& job, Handlers handlers);

  // Opens the socket a little later: a job that ends sooner needs none.
  void schedule();
  // Says so when it cannot be opened.
  void open();
  // AlreadyExists: another launcher of this job lives.
  Result<void> listen();
  // Null: ivyctl does not find this job.
  JobSocket* socket() { return socket_.get(); }

  // FailedPrecondition: there is no store, or no workers run.
  Result<ctl::StoreDescription> store_description() const;
  // The last that followers hear; calls told when they have heard it.
  void end(const Outcome& outcome, const std::string& summary, std::function<void()> told);

 private:
  ctl::JobDescription description() const;
  Result<void> signal(int signal);
  Result<void> stop(const ctl::StopJob& stop);

  JobContext& job_;
  Handlers handlers_;
  const pid_t parent_;  // Of this process, at the start.
  std::unique_ptr<JobSocket> socket_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
