// SPDX-License-Identifier: Apache-2.0
// A request to run one job, and the job's identity: main's input to class Job. Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/job/detach.h"
#include "launcher/links/choice/transport.h"
#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/screen/output_events.h"
#include "proto/contract/env.h"
#include "proto/contract/limits.h"
#include "proto/wire/ctl.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class AllocationWatch;
class DialBackHosts;

// The nodes of torchrun mode whose ivyruns have joined this job. Each shows the output of its own
// workers and this ivyrun's messages, and exits with the job's exit code. Implemented in
// launcher/join. Thread: the loop's. Lifetime: outlives the job.
class JoinedNodes {
 public:
  virtual ~JoinedNodes() = default;
  // The hosts' links wait there for the job.
  virtual std::shared_ptr<DialBackHosts> hosts() = 0;
  // Shows the part of the job's output that is theirs; `job` learns when they have shown it.
  virtual OutputElsewhere& elsewhere(OutputEvents& job) = 0;
  virtual void begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) = 0;
  // Sends the exit code to them; calls done when they have it, or cannot be reached.
  virtual void end(int exit_code, std::function<void()> done) = 0;
};

// Names a job, and proves that a launcher is its own.
struct JobIdentity {
  std::string job_id;
  std::string token;  // A secret of 32 bytes.
};
JobIdentity make_job_identity();

struct JobRequest {
  Options options;  // working_directory is absolute; at least one host.
  Environment caller;
  NodeProgram node;
  MakeAgentLink make_agent_link;  // From agent_link_maker().
  JobIdentity identity;
  std::optional<WorkerLimits> limits;  // Of the shell in which ivyrun was started.
  std::string started_in;            // ivyrun's working directory; --log-dir may be relative to it.
  Detachment* detachment = nullptr;  // Set with --detach; it outlives the job.
  JoinedNodes* joined = nullptr;     // torchrun mode: the other nodes; outlives the job.
  AllocationWatch* allocation_end = nullptr;  // In a Slurm allocation; outlives the job.
  // Set when the job runs already and its launcher is dead: this launcher takes it over. Options
  // are then what job_record.h has read from the record.
  std::optional<ctl::JobRecord> record;
  std::chrono::milliseconds timeout_passed{0};  // Used up of --timeout by earlier launchers.
};

}  // namespace ivy
