// Nodes of torchrun mode whose ivyruns have joined this job: each shows its user what its own
// workers print and what this ivyrun says, and ends with the job's exit code. Thread: the loop's.
// Lifetime: outlives the job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "launcher/plan/job_plan.h"
#include "launcher/screen/output.h"

namespace ivy {

class DialBackHosts;

class JoinedNodes {
 public:
  virtual ~JoinedNodes() = default;
  // Where the links to their hosts wait for them.
  virtual std::shared_ptr<DialBackHosts> hosts() = 0;
  // What the job's output gives to them. consumed: see Output::Handlers.
  virtual Output::Elsewhere elsewhere(
      std::function<void(int host, std::uint64_t bytes)> consumed) = 0;
  virtual void begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) = 0;
  // The job has ended: calls done when they have been told, or cannot be.
  virtual void end(int exit_code, std::function<void()> done) = 0;
};

}  // namespace ivy
