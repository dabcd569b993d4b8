// What one job is asked to do, and who it is: what main gives to class Job. Thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/detach.h"
#include "launcher/links/choice/carrier.h"
#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/limits.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

// Time from TERM to KILL when the user or a scheduler asks for the end, unless --shutdown-timeout
// sets another. After a failure it is kGraceAfterFailure.
inline constexpr std::chrono::milliseconds kGraceByRequest{30'000};

class AllocationWatch;

// Names a job, and proves that a launcher is its own.
struct JobIdentity {
  std::string job_id;  // 32 hexadecimal digits.
  std::string token;   // 32 bytes.
};
JobIdentity make_job_identity();

struct JobRequest {
  Options options;          // working_directory is absolute.
  std::vector<Host> hosts;  // At least one.
  Environment caller;
  std::string node_binary;        // ivy-node of this build.
  MakeAgentLink make_agent_link;  // agent_link_maker().
  JobIdentity identity;
  std::string started_in;            // Where ivyrun was called; --log-dir may be relative to it.
  Detachment* detachment = nullptr;  // --detach; outlives the job.
  std::optional<SlurmAllocation> allocation;  // That we are in, whichever hosts were chosen.
  AllocationWatch* allocation_end = nullptr;  // In a Slurm allocation; outlives the job.
  // Set when the job runs already and its launcher is dead: this launcher takes it over. Options
  // and hosts are then what job_record.h has read from the record.
  std::optional<ctl::JobRecord> record;
  std::chrono::milliseconds timeout_passed{0};  // Used up of --timeout by earlier launchers.
};

}  // namespace ivy
