// SPDX-License-Identifier: Apache-2.0
// All processes of a job on this host, however they were forked, held together so that they can be
// ended and proved to be gone. Two kinds: a cgroup v2 of its own where one is writable, else the
// tree of processes below the warden (a subreaper) plus those that carry the job's id in their
// environment.
// Thread: the supervisor's (or the warden's) only thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct JobProcess {
  pid_t pid = 0;
  std::string name;        // As /proc/PID/comm has it, 15 bytes at most.
  char state = '?';        // R S D Z T...
  std::string waiting_in;  // /proc/pid/wchan, for a process that cannot be ended.
};

class Containment {
 public:
  virtual ~Containment() = default;
  // Directory descriptor for SpawnRequest::cgroup_fd, or -1.
  virtual int cgroup_fd() const = 0;
  // Returns "cgroup /sys/fs/cgroup/..." or "process tree (reason)", for HostFacts and messages.
  virtual std::string describe() const = 0;
  // Living processes of the job (never the supervisor, the warden or zombies), at most 4096.
  virtual std::vector<JobProcess> members() const = 0;
  // Sends a signal to every member once. SIGTERM is preceded by SIGCONT.
  virtual void signal_all(int signal) = 0;
  // One pass of SIGKILL over everything (cgroup.kill where there is one). Call again until empty().
  virtual void kill_all() = 0;
  // Excludes a child of the supervisor, the job's store, from the members.
  virtual void spare(pid_t pid) { (void)pid; }
  // True if it is proved that no living process of the job is left: an unreadable /proc or cgroup
  // proves nothing. The process tree needs two empty passes in a row.
  virtual bool empty() = 0;
  // Cleans up after the trial child. Methods that need it call it themselves; the owner calls it
  // earlier, at a time when nothing waits.
  virtual void settle() {}
  // Removes the cgroup; only when empty.
  virtual void remove() = 0;
  // The kernel's counter of out-of-memory kills nearest to this job: of its own cgroup, else of the
  // memory cgroup that this process is in, else of the machine; -1 when there is none.
  virtual long out_of_memory_kills() const = 0;
};

// Job id and host number alone name the cgroup, so that the warden finds what its supervisor made.
struct ContainmentRequest {
  std::string job_id;
  std::uint32_t host = 0;
  pid_t supervisor = 0;  // Never a member of the containment.
  pid_t warden = 0;      // Never a member; the root of the process tree.
  // A cgroup in which a process has already been created, so that no trial is needed; empty:
  // unknown.
  std::string proved_cgroup;
  // A scheduler's step holds us, and searches for the job's processes in its own cgroup only.
  bool in_step = false;
};

}  // namespace ivy
