// SPDX-License-Identifier: Apache-2.0
// The request to run one job, which main passes to class Job, and the job's identity. Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/job/core/detach.h"
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

// The job, as the other nodes of torchrun mode call it: class Job.
class JoinedNodesEvents : public OutputEvents {
 public:
  // A user has interrupted the ivyrun of another node.
  virtual void nodes_interrupted(int signal) = 0;
  // A line for the user.
  virtual void nodes_message(const std::string& line) = 0;

 protected:
  ~JoinedNodesEvents() = default;
};

// The other nodes of torchrun mode, whose ivyruns have joined this job. Each shows the output of
// its own workers and this ivyrun's messages, and exits with the job's exit code. Implemented in
// launcher/join. Thread: the loop's. Lifetime: outlives the job.
class JoinedNodes {
 public:
  virtual ~JoinedNodes() = default;
  // The hosts on these nodes; they dial back, and their links wait here for them.
  virtual std::shared_ptr<DialBackHosts> hosts() = 0;
  // Shows the output of ranks on these nodes. From now on `job` gets the events.
  virtual RemoteOutput& remote_output(JoinedNodesEvents& job) = 0;
  // An attempt begins: sends its plan.
  virtual void begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) = 0;
  // Sends the exit code; calls done when all nodes have it or cannot be reached.
  virtual void end(int exit_code, std::function<void()> done) = 0;
};

// Names a job, and proves to its hosts that a launcher belongs to it.
struct JobIdentity {
  std::string job_id;
  std::string token;  // A secret of 32 bytes, which the hosts compare.
};
JobIdentity make_job_identity();

struct JobRequest {
  Options options;                // working_directory is absolute; at least one host.
  Environment caller;             // The environment of ivyrun.
  NodeProgram node;               // ivy-node of this build.
  MakeAgentLink make_agent_link;  // From agent_link_maker().
  JobIdentity identity;
  std::optional<WorkerLimits> limits;  // The limits of the shell that started ivyrun.
  std::string started_in;            // ivyrun's working directory; --log-dir may be relative to it.
  Detachment* detachment = nullptr;  // Set with --detach; outlives the job.
  JoinedNodes* joined = nullptr;     // Set in torchrun mode; outlives the job.
  // Set in a Slurm allocation and in a pod; outlives the job.
  AllocationWatch* allocation_end = nullptr;
  // Set if this launcher takes over a running job whose launcher has exited. The options then come
  // from this record (job_record.h).
  std::optional<ctl::JobRecord> record;
  // Part of --timeout that earlier launchers have used.
  std::chrono::milliseconds timeout_passed{0};
};

}  // namespace ivy
