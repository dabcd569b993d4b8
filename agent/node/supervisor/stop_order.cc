// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/stop_order.h"

#include <unistd.h>

#include <csignal>
#include <map>
#include <set>

#include "agent/node/spawn/process_tree.h"

namespace ivy {
namespace {

using Parents = std::map<pid_t, pid_t>;

// True if the process is one of `leaders`, below one, or, if its parents have gone, still in a
// leader's process group.
bool belongs_to(const std::set<pid_t>& leaders, const Parents& parents, pid_t pid) {
  if (leaders.contains(getpgid(pid))) return true;
  std::set<pid_t> seen;  // Guards against cycles: the table is no atomic snapshot.
  for (auto at = parents.find(pid); at != parents.end() && seen.insert(at->first).second;
       at = parents.find(at->second)) {
    if (leaders.contains(at->first)) return true;
  }
  return false;
}

}  // namespace

void terminate_uninformed(const Containment& containment,
                          const std::vector<std::unique_ptr<Worker>>& workers,
                          const ControlServer& control) {
  std::set<pid_t> leaders;
  for (const std::unique_ptr<Worker>& worker : workers)
    if (is_alive(worker->state()) && !control.is_informed(worker->rank()))
      leaders.insert(worker->pid());
  if (leaders.empty()) return;
  std::vector<ProcessStat> processes;
  Parents parents;
  for (const JobProcess& member : containment.members()) {
    ProcessStat process;
    if (!read_process_stat(member.pid, process)) continue;
    parents[process.pid] = process.parent;
    processes.push_back(process);
  }
  for (const ProcessStat& process : processes) {
    if (!belongs_to(leaders, parents, process.pid)) continue;
    signal_process(process.pid, process.start_time, SIGCONT);
    signal_process(process.pid, process.start_time, SIGTERM);
  }
}

void interrupt_groups(const std::vector<std::unique_ptr<Worker>>& workers) {
  for (const std::unique_ptr<Worker>& worker : workers) {
    // A worker that has not been reaped keeps its number, and is the leader of its group.
    if (!is_alive(worker->state()) || worker->pid() <= 1) continue;
    kill(-worker->pid(), SIGCONT);
    kill(-worker->pid(), SIGINT);
  }
}

}  // namespace ivy
