// SPDX-License-Identifier: Apache-2.0
// Containment without a cgroup: the processes below the warden and the supervisor (both are
// subreapers, so processes cannot escape by double-forking or setsid), and all processes with the
// job's id and host number in their environment. A process escapes only if another daemon starts it
// with a clean environment, or if it forks and exits faster than /proc can be read. Thread: the
// supervisor's (or the warden's) only thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/node/spawn/containment.h"

namespace ivy {

// One line of /proc/PID/stat. Another process may reuse a pid, but not a pid with its start time.
struct ProcessStat {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';
  int threads = 0;
  std::uint64_t start_time = 0;  // In clock ticks since boot; distinguishes a reused process id.
  std::uint64_t cpu_ticks = 0;   // Used so far, including by children that it has reaped.
  std::uint64_t resident_pages = 0;
  std::string name;
  // The main thread, or another thread if the main thread has exited. In that case the kernel calls
  // the process a zombie although it computes, holds memory and receives signals, and shows its
  // open files, wait channel and environment only under its other threads.
  pid_t thread = 0;
};

// Parses the text of /proc/PID/stat; a name may contain spaces and parentheses. Pure: sets `state`
// and `thread` for the main thread.
bool parse_process_stat(const std::string& text, ProcessStat& out);
// Returns true if all of its threads have exited.
bool has_ended(const ProcessStat& process);
// Returns "/proc/PID/task/THREAD/FILE" for a thread that has not exited.
std::string thread_path(const ProcessStat& process, const std::string& file);
// A job with more processes is killed in several passes.
inline constexpr std::size_t kMaxMembers = 4096;
// Returns false if there is no such process.
bool read_process_stat(pid_t pid, ProcessStat& out);
// Returns every process of this pid namespace. Clears `is_complete`, if given, if a lack of
// resources kept it from reading all of them.
std::vector<ProcessStat> read_all_processes(bool* is_complete = nullptr);
// Signals exactly this process, never another one that reused its pid. Rejects pid <= 1.
bool signal_process(pid_t pid, std::uint64_t start_time, int signal);
// Includes the kernel function in which it waits, if it is in uninterruptible sleep.
JobProcess describe_process(const ProcessStat& process);

class ProcessTree final : public Containment {
 public:
  // why: the reason for not using a cgroup, for describe().
  explicit ProcessTree(const ContainmentRequest& request, std::string why = {});
  int cgroup_fd() const override { return -1; }
  std::string describe() const override;
  std::vector<JobProcess> members() const override;
  void signal_all(int signal) override;
  void kill_all() override;
  void spare(pid_t pid) override;
  void spare_tree(pid_t pid) override { spared_tree_ = identify(pid); }
  bool empty() override;  // True after two consecutive passes that found no process.
  void remove() override {}
  long out_of_memory_kills() const override;

 private:
  struct Identity {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
  };
  static Identity identify(pid_t pid);
  bool is_keeper(const ProcessStat& process) const;
  bool is_spared_tree(const ProcessStat& process) const;
  std::vector<ProcessStat> find(bool* is_complete = nullptr) const;
  bool is_empty_now() const;

  std::string why_;
  std::string job_variable_;
  std::string host_variable_;
  Identity supervisor_;
  Identity warden_;
  std::vector<Identity> spared_;
  Identity spared_tree_;
};

}  // namespace ivy
