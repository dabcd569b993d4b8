// What one job is asked to do, and who it is: what main gives to class Job. Thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/job/detach.h"
#include "launcher/links/choice/carrier.h"
#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/limits.h"
#include "proto/wire/ctl.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class AllocationWatch;
class JoinedNodes;

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
  std::string started_in;              // Where ivyrun was called; --log-dir may be relative to it.
  Detachment* detachment = nullptr;    // Set with --detach; it outlives the job.
  JoinedNodes* joined = nullptr;       // torchrun mode: the other nodes; outlives the job.
  AllocationWatch* allocation_end = nullptr;  // In a Slurm allocation; outlives the job.
  // Set when the job runs already and its launcher is dead: this launcher takes it over. Options
  // are then what job_record.h has read from the record.
  std::optional<ctl::JobRecord> record;
  std::chrono::milliseconds timeout_passed{0};  // Used up of --timeout by earlier launchers.
};

}  // namespace ivy
