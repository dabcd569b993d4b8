#include "agent/node/stop_order.h"

#include <unistd.h>

#include <csignal>
#include <set>

#include "agent/node/process_tree.h"

namespace ivy {

void terminate_untold(const Containment& containment,
                      const std::vector<std::unique_ptr<Worker>>& workers,
                      const ControlServer& control) {
  std::set<pid_t> sessions;  // A worker's is named by its first process.
  for (const std::unique_ptr<Worker>& worker : workers)
    if (is_alive(worker->state()) && !control.is_told(worker->rank()))
      sessions.insert(worker->pid());
  if (sessions.empty()) return;
  for (const JobProcess& member : containment.members()) {
    ProcessStat process;
    if (!read_process_stat(member.pid, process)) continue;
    if (!sessions.contains(getsid(member.pid))) continue;
    signal_process(process.pid, process.start_time, SIGCONT);
    signal_process(process.pid, process.start_time, SIGTERM);
  }
}

}  // namespace ivy
