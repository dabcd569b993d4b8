// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/unit_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/os/cgroup_files.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

constexpr char kAgentLeaf[] = "/agent";
constexpr char kJobsLeaf[] = "/jobs";

UnitCgroup none(const std::string& why) { return {{}, "no cgroup for jobs: " + why}; }
UnitCgroup none(const std::string& what, int error) {
  return none(what + ": " + std::strerror(error));
}

bool make_directory(const std::string& path) {
  return mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
}

// Returns 0 or an errno.
int move_this_process(const std::string& directory) {
  const Descriptor fd(open((directory + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  return fd && write(fd.get(), "0", 1) == 1 ? 0 : errno;
}

// Enters the cgroup in a child process, as a warden will. Returns 0 or an errno.
int try_to_enter(const std::string& directory) {
  const pid_t child = fork();
  if (child == 0) _exit(move_this_process(directory));
  if (child < 0) return errno;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

// The unit's own directory, even when we were started in its leaf (DelegateSubgroup=agent).
std::string unit_directory(const std::string& own) {
  const std::string leaf = kAgentLeaf;
  if (!own.ends_with(leaf)) return own;
  const std::string parent = own.substr(0, own.size() - leaf.size());
  return access((parent + "/cgroup.procs").c_str(), W_OK) == 0 ? parent : own;
}

}  // namespace

UnitCgroup enter_unit_cgroup() {
  const auto own = own_cgroup_v2_directory();
  if (!own) return none("cgroup v2 is not mounted here");
  const std::string unit = unit_directory(*own);
  const std::string agent = unit + kAgentLeaf;
  const std::string jobs = unit + kJobsLeaf;
  if (!make_directory(agent)) return none("mkdir " + agent, errno);
  const int moved = move_this_process(agent);
  if (moved != 0) {
    rmdir(agent.c_str());
    return none("move into " + agent, moved);
  }
  if (!make_directory(jobs)) return none("mkdir " + jobs, errno);
  const int entered = try_to_enter(jobs);
  if (entered != 0) return none("cannot move a process into " + jobs, entered);
  return {jobs, "cgroup " + jobs};
}

}  // namespace ivy
