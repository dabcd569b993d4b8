// SPDX-License-Identifier: Apache-2.0
// Finds the supervisors and processes on this host of jobs from any launcher, through the
// directories of supervisors (JOBID-HOST, "Job directory" in agent/node/README.md). For ivyctl, if
// a job has no launcher here. Blocks for milliseconds. Thread: any, one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ivy {

struct HostedJob {
  std::string job_id;
  std::uint32_t host = 0;  // Host number in the job.
  std::string directory;
};

// Lists the jobs of this user whose warden or supervisor lives, even a stopped one, by id.
std::vector<HostedJob> find_hosted_jobs();
// This user's ivyruns that see another /tmp than we do, in a mount namespace of their own: their
// jobs are not found from here.
std::vector<pid_t> launchers_with_another_tmp();
// Asks its supervisor to end the job on this host, in order. False when it cannot be found.
bool ask_to_end(const HostedJob& job);

struct HostedProcess {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // Clock ticks since boot: the pid alone may be another's by now.
  std::string name;
};

// This user's processes with the job's id in the environment. They may outlive the supervisor: what
// cannot be killed does.
class HostedProcesses {
 public:
  explicit HostedProcesses(std::string job_id) : job_id_(std::move(job_id)) {}
  // Returns the running processes. A process seen once is identified by its pid from then on: while
  // it exits it has no environment.
  const std::vector<HostedProcess>& look();

 private:
  std::string job_id_;
  std::vector<HostedProcess> known_;
};

}  // namespace ivy
