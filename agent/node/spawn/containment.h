// SPDX-License-Identifier: Apache-2.0
// The set of all processes of a job on this host, however they were forked, so that all of them can
// be killed and their absence proved. Two kinds: a cgroup v2 of the job if one is writable;
// otherwise the processes below the warden (a subreaper) and those with the job's id in their
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
  std::string name;        // From /proc/PID/comm: at most 15 bytes.
  char state = '?';        // R S D Z T...
  std::string waiting_in;  // From /proc/PID/wchan, if the process cannot be killed.
};

class Containment {
 public:
  virtual ~Containment() = default;
  // Directory descriptor for SpawnRequest::cgroup_fd, or -1.
  virtual int cgroup_fd() const = 0;
  // Returns "cgroup /sys/fs/cgroup/..." or "process tree (reason)", for HostFacts and messages.
  virtual std::string describe() const = 0;
  // Returns at most 4096 live processes of the job, never the supervisor, the warden or zombies.
  virtual std::vector<JobProcess> members() const = 0;
  // Sends a signal to every member once. SIGTERM is preceded by SIGCONT.
  virtual void signal_all(int signal) = 0;
  // Sends SIGKILL to everything once (through cgroup.kill if available). Call again until empty().
  virtual void kill_all() = 0;
  // Excludes a child of the supervisor, the job's store, from the members.
  virtual void spare(pid_t pid) { (void)pid; }
  // Excludes a child of the supervisor with all of its descendants: the keeper of the job's
  // container, which is a subreaper.
  virtual void spare_tree(pid_t pid) { (void)pid; }
  // Returns true if no live process of the job is left for certain; an unreadable /proc or cgroup
  // proves nothing. The process tree needs two empty passes in a row.
  virtual bool empty() = 0;
  // Waits for the trial child. Methods that depend on it call this themselves; the owner calls it
  // earlier, when no process waits for the supervisor.
  virtual void settle() {}
  // Removes the cgroup, which must be empty.
  virtual void remove() = 0;
  // Returns the most specific kernel counter of out-of-memory kills: the job's cgroup, else the
  // memory cgroup of this process, else the machine; -1 if there is none.
  virtual long out_of_memory_kills() const = 0;
};

// The cgroup's name is derived from job id and host number only, so that the warden finds the
// cgroup that its supervisor created.
struct ContainmentRequest {
  std::string job_id;
  std::uint32_t host = 0;
  pid_t supervisor = 0;  // Never a member of the containment.
  pid_t warden = 0;      // Never a member; the root of the process tree.
  // A cgroup in which a process has already been created, so no trial is needed; empty if unknown.
  std::string proved_cgroup;
  // This process runs in a scheduler's step, whose scheduler searches only its own cgroup for
  // processes.
  bool in_step = false;
};

}  // namespace ivy
