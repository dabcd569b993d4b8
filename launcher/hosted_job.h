// What this host has of jobs, whoever launched them: the directories of supervisors (JOBID-HOST,
// "Job directory" in agent/README.md). For ivyctl, when a job has no launcher here. Blocking, for
// milliseconds. Thread: any, one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

struct HostedJob {
  std::string job_id;
  std::uint32_t host = 0;  // Host number in the job.
  std::string directory;
};

// Those of this user whose supervisor listens, by id.
std::vector<HostedJob> find_hosted_jobs();
// Asks its supervisor to end the job on this host, in order. False when it cannot be found.
bool ask_to_end(const HostedJob& job);

}  // namespace ivy
