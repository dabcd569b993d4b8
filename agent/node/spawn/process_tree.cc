// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "proto/os/cgroup_files.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// An environment may be 2 MiB long; our variables are at its start, where the supervisor put them.
constexpr std::size_t kMaxEnvironmentBytes = 2u << 20;
constexpr std::size_t kMaxStatBytes = 4096;
// Rounds of SIGSTOP before SIGKILL: each finds the processes that were forked during the previous
// one.
constexpr int kMaxStopRounds = 20;

std::string proc_path(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

bool has_variable(std::string_view environment, std::string_view variable) {
  for (std::size_t at = 0; at < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', at), environment.size());
    if (environment.substr(at, end - at) == variable) return true;
    at = end + 1;
  }
  return false;
}

// Returns true if a read failed for lack of descriptors or memory. Other errors mean that the
// process has exited in the meantime.
bool is_short_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM;
}

// Used after the main thread has exited: reads the state from a thread that still exists.
void read_other_threads(ProcessStat& process) {
  const std::string tasks = proc_path(process.pid, "task");
  for (const std::string& name : names_in(tasks)) {
    ProcessStat thread;
    const std::string stat = read_file(tasks + "/" + name + "/stat", kMaxStatBytes).value_or("");
    if (!parse_process_stat(stat, thread) || has_ended(thread)) continue;
    process.thread = thread.pid;
    process.state = thread.state;
    return;
  }
}

}  // namespace

bool parse_process_stat(const std::string& text, ProcessStat& out) {
  // The name is between the first '(' and the last ')', because it may contain parentheses.
  const std::size_t open_at = text.find('(');
  const std::size_t close_at = text.rfind(')');
  if (open_at == std::string::npos || close_at == std::string::npos || close_at < open_at)
    return false;
  out.name = text.substr(open_at + 1, close_at - open_at - 1);
  unsigned long long start_time = 0;
  int parent = 0;
  unsigned long long cpu[4] = {};
  unsigned long long pages = 0;
  // state, ppid, nine ignored fields, utime stime cutime cstime (field 14 of proc(5) and
  // following), two more, num_threads, another, starttime vsize rss.
  const int fields = std::sscanf(
      text.c_str() + close_at + 1,
      " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu %llu %llu %*s %*s %d %*s %llu %*s %llu",
      &out.state, &parent, &cpu[0], &cpu[1], &cpu[2], &cpu[3], &out.threads, &start_time, &pages);
  // A text that ends with the start time suffices to identify a process.
  if (fields < 8) return false;
  out.cpu_ticks = cpu[0] + cpu[1] + cpu[2] + cpu[3];
  out.resident_pages = pages;
  out.pid = static_cast<pid_t>(std::atoi(text.c_str()));
  out.thread = out.pid;
  out.parent = parent;
  out.start_time = start_time;
  return out.pid > 0;
}

bool has_ended(const ProcessStat& process) { return process.state == 'Z' || process.state == 'X'; }

std::string thread_path(const ProcessStat& process, const std::string& file) {
  return proc_path(process.pid, "task/") + std::to_string(process.thread) + "/" + file;
}

bool read_process_stat(pid_t pid, ProcessStat& out) {
  if (!parse_process_stat(read_file(proc_path(pid, "stat"), kMaxStatBytes).value_or(""), out))
    return false;
  if (has_ended(out) && out.threads > 1) read_other_threads(out);
  return true;
}

std::vector<ProcessStat> read_all_processes(bool* is_complete) {
  std::vector<ProcessStat> all;
  const OpenDirectory proc(opendir("/proc"));
  if (!proc) {
    if (is_complete != nullptr) *is_complete = false;
    return all;
  }
  while (const dirent* entry = readdir(proc.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    ProcessStat process;
    errno = 0;
    if (read_process_stat(static_cast<pid_t>(std::atoi(entry->d_name)), process))
      all.push_back(std::move(process));
    else if (is_short_of_resources(errno) && is_complete != nullptr)
      *is_complete = false;
  }
  return all;
}

bool signal_process(pid_t pid, std::uint64_t start_time, int signal) {
  if (pid <= 1) return false;
  const Descriptor pidfd(open_pidfd(pid));
  if (!pidfd) return false;
  // The descriptor is open: if the pid still has the same start time now, so has the descriptor's
  // process.
  ProcessStat now;
  const bool same = read_process_stat(pid, now) && now.start_time == start_time;
  return same && syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0u) == 0;
}

ProcessTree::ProcessTree(const ContainmentRequest& request, std::string why)
    : why_(std::move(why)),
      job_variable_("IVY_JOB_ID=" + request.job_id),
      host_variable_("IVY_HOST_INDEX=" + std::to_string(request.host)),
      supervisor_(identify(request.supervisor)),
      warden_(identify(request.warden)) {}

ProcessTree::Identity ProcessTree::identify(pid_t pid) {
  ProcessStat process;
  if (pid <= 1 || !read_process_stat(pid, process)) return {};
  return Identity{pid, process.start_time};
}

bool ProcessTree::is_keeper(const ProcessStat& process) const {
  const auto matches = [&process](const Identity& keeper) {
    return keeper.pid == process.pid && keeper.start_time == process.start_time;
  };
  return matches(supervisor_) || matches(warden_) ||
         std::any_of(spared_.begin(), spared_.end(), matches);
}

bool ProcessTree::is_spared_tree(const ProcessStat& process) const {
  return spared_tree_.pid > 0 && process.pid == spared_tree_.pid &&
         process.start_time == spared_tree_.start_time;
}

// At most a handful are spared; entries of processes that have ended match none.
void ProcessTree::spare(pid_t pid) {
  // Drop its own entry and those of exited processes, which would accumulate.
  std::erase_if(spared_, [pid](const Identity& old) {
    ProcessStat now;
    return old.pid == pid || !read_process_stat(old.pid, now) || now.start_time != old.start_time;
  });
  spared_.push_back(identify(pid));
}

std::vector<ProcessStat> ProcessTree::find(bool* is_complete) const {
  const std::vector<ProcessStat> all = read_all_processes(is_complete);
  std::unordered_map<pid_t, std::vector<const ProcessStat*>> children;
  for (const ProcessStat& process : all) children[process.parent].push_back(&process);

  std::vector<const ProcessStat*> to_visit;
  std::unordered_set<pid_t> seen;
  for (const ProcessStat& process : all) {
    if (is_keeper(process)) to_visit.push_back(&process);
    if (is_spared_tree(process)) seen.insert(process.pid);
  }
  std::vector<ProcessStat> found;
  const auto add = [&](const ProcessStat& process) {
    if (process.pid <= 1 || !seen.insert(process.pid).second) return;
    to_visit.push_back(&process);
    if (!has_ended(process) && !is_keeper(process)) found.push_back(process);
  };
  const auto descend = [&] {
    while (!to_visit.empty()) {
      const pid_t parent = to_visit.back()->pid;
      to_visit.pop_back();
      for (const ProcessStat* child : children[parent]) add(*child);
    }
  };
  descend();
  for (const ProcessStat& process : all) {
    if (seen.contains(process.pid) || is_keeper(process) || has_ended(process)) continue;
    const auto environment = read_file(thread_path(process, "environ"), kMaxEnvironmentBytes);
    if (!environment && is_short_of_resources(errno) && is_complete != nullptr)
      *is_complete = false;
    if (!environment || !has_variable(*environment, job_variable_)) continue;
    if (has_variable(*environment, host_variable_)) add(process);
  }
  descend();
  return found;
}

std::string ProcessTree::describe() const {
  return why_.empty() ? "process tree" : "process tree (" + why_ + ")";
}

std::vector<JobProcess> ProcessTree::members() const {
  std::vector<JobProcess> members;
  for (const ProcessStat& process : find()) {
    if (members.size() == kMaxMembers) break;
    members.push_back(describe_process(process));
  }
  return members;
}

void ProcessTree::signal_all(int signal) {
  for (const ProcessStat& process : find()) {
    if (signal == SIGTERM) signal_process(process.pid, process.start_time, SIGCONT);
    signal_process(process.pid, process.start_time, signal);
  }
}

// A stopped process cannot fork, so the rounds are complete when one finds nothing new to stop.
void ProcessTree::kill_all() {
  std::vector<ProcessStat> found = find();
  std::unordered_set<pid_t> stopped;
  for (int round = 0; round < kMaxStopRounds && !found.empty(); ++round) {
    bool is_new = false;
    for (const ProcessStat& process : found) {
      if (!stopped.insert(process.pid).second) continue;
      is_new = true;
      signal_process(process.pid, process.start_time, SIGSTOP);
    }
    if (!is_new) break;
    found = find();
  }
  for (const ProcessStat& process : found) {
    signal_process(process.pid, process.start_time, SIGKILL);
  }
}

bool ProcessTree::is_empty_now() const {
  bool is_complete = true;
  return find(&is_complete).empty() && is_complete;
}

bool ProcessTree::empty() { return is_empty_now() && is_empty_now(); }

long ProcessTree::out_of_memory_kills() const { return surrounding_memory_kills(); }

JobProcess describe_process(const ProcessStat& process) {
  constexpr std::size_t kMaxFunctionBytes = 128;
  JobProcess member;
  member.pid = process.pid;
  member.name = process.name;
  member.state = process.state;
  if (process.state == 'D') {
    member.waiting_in = read_file(thread_path(process, "wchan"), kMaxFunctionBytes).value_or("");
  }
  return member;
}

}  // namespace ivy
