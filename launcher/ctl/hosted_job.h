// SPDX-License-Identifier: Apache-2.0
// Finds supervisors and processes on this host, of jobs from any launcher, through the supervisors'
// directories (JOBID-HOST; "Job directory" in agent/node/spawn/README.md). ivyctl uses it if a job
// has no launcher here. Blocks for milliseconds. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ivy {

struct HostedJob {
  std::string job_id;
  std::uint32_t host = 0;  // The host's number in the job.
  std::string directory;
};

// Lists, in the order of their ids, this user's jobs whose warden or supervisor is running, even if
// it is stopped.
std::vector<HostedJob> find_hosted_jobs();
// Returns this user's ivyruns that have another /tmp than this process, in a separate mount
// namespace: their jobs cannot be found from here.
std::vector<pid_t> launchers_with_another_tmp();
// Asks the job's supervisor to end the job on this host in an orderly way. Returns false if the
// supervisor cannot be found.
bool request_stop(const HostedJob& job);

struct HostedProcess {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // Clock ticks since boot; the pid may have been reused.
  std::string name;
};

// This user's processes with the job's id in their environment. They may outlive the supervisor if
// they cannot be killed.
class HostedProcesses {
 public:
  explicit HostedProcesses(std::string job_id) : job_id_(std::move(job_id)) {}
  // Returns the running processes. A process seen once is identified by its pid from then on,
  // because an exiting process has no environment.
  const std::vector<HostedProcess>& refresh();

 private:
  std::string job_id_;
  std::vector<HostedProcess> known_;
};

}  // namespace ivy
