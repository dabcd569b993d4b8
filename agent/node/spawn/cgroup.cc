// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "agent/node/spawn/clone_process.h"
#include "agent/node/spawn/process_tree.h"
#include "proto/os/cgroup_files.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// A worker may create cgroups below ours (containers); deeper nesting is not expected.
constexpr int kMaxDepth = 32;
constexpr std::size_t kJobIdDigitsInName = 12;
constexpr std::string_view kDescribed = "cgroup ";

Descriptor open_directory(const std::string& path) {
  return Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool write_file(const std::string& path, std::string_view text) {
  const Descriptor fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && write_all(fd.get(), text);
}

std::vector<std::string> child_cgroups(const std::string& directory) {
  std::vector<std::string> children;
  const OpenDirectory opened(opendir(directory.c_str()));
  while (const dirent* entry = opened ? readdir(opened.get()) : nullptr) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
    children.push_back(directory + "/" + entry->d_name);
  }
  return children;
}

void collect_processes(const std::string& directory, int depth, std::vector<ProcessStat>& out) {
  if (depth > kMaxDepth) return;
  for (const pid_t pid : pids_in_cgroup(directory)) {
    ProcessStat process;
    // A pid of 0 is a process of another pid namespace.
    if (pid > 1 && out.size() < kMaxMembers && read_process_stat(pid, process)) {
      out.push_back(std::move(process));
    }
  }
  for (const std::string& child : child_cgroups(directory))
    collect_processes(child, depth + 1, out);
}

void remove_cgroups(const std::string& directory, int depth) {
  // Usually the first rmdir() succeeds, because workers rarely create cgroups.
  if (depth > kMaxDepth || rmdir(directory.c_str()) == 0 || errno == ENOENT) return;
  for (const std::string& child : child_cgroups(directory)) remove_cgroups(child, depth + 1);
  rmdir(directory.c_str());
}

class Cgroup final : public Containment {
 public:
  // Neither supervisor nor warden is ever in it: they run in the cgroup above.
  Cgroup(std::string directory, Descriptor fd, std::unique_ptr<CgroupProbe> trial)
      : directory_(std::move(directory)), fd_(std::move(fd)), trial_(std::move(trial)) {}

  int cgroup_fd() const override { return fd_.get(); }
  std::string describe() const override { return std::string(kDescribed) + directory_; }

  std::vector<JobProcess> members() const override {
    std::vector<JobProcess> members;
    for (const ProcessStat& process : find()) members.push_back(describe_process(process));
    return members;
  }

  void signal_all(int signal) override {
    for (const ProcessStat& process : find()) {
      if (signal == SIGTERM) signal_process(process.pid, process.start_time, SIGCONT);
      signal_process(process.pid, process.start_time, signal);
    }
  }

  void settle() override { trial_.reset(); }

  void kill_all() override {
    kill_those_without_main_thread();
    if (write_file(directory_ + "/cgroup.kill", "1")) {
      // Children that they forked in the meantime were killed too. Repeat if another process has
      // lost its main thread since.
      if (kill_those_without_main_thread()) write_file(directory_ + "/cgroup.kill", "1");
      return;
    }
    // Before Linux 5.14: frozen processes cannot fork, but SIGKILL still kills them.
    write_file(directory_ + "/cgroup.freeze", "1");
    signal_all(SIGKILL);
    write_file(directory_ + "/cgroup.freeze", "0");
  }

  bool empty() override {
    settle();
    const auto populated = read_cgroup_counter(directory_ + "/cgroup.events", "populated");
    if (populated) return *populated == 0;
    // A removed cgroup is empty. Any other error, such as EMFILE, proves nothing.
    return access(directory_.c_str(), F_OK) != 0 && errno == ENOENT;
  }

  void remove() override { remove_cgroups(directory_, 0); }

  long out_of_memory_kills() const override {
    const auto own = read_cgroup_counter(directory_ + "/memory.events", "oom_kill");
    return own ? *own : surrounding_memory_kills();
  }

 private:
  std::vector<ProcessStat> find() const {
    trial_.reset();
    std::vector<ProcessStat> found;
    collect_processes(directory_, 0, found);
    std::erase_if(found, has_ended);
    return found;
  }

  // Kills processes whose main thread has exited: cgroup.kill sends its signal to that thread,
  // which no longer receives it (seen with Linux 6.18).
  bool kill_those_without_main_thread() const {
    bool is_any = false;
    for (const ProcessStat& process : find())
      if (process.thread != process.pid)
        is_any |= signal_process(process.pid, process.start_time, SIGKILL);
    return is_any;
  }

  const std::string directory_;
  const Descriptor fd_;
  // The trial child may remain in the cgroup until it is reaped.
  mutable std::unique_ptr<CgroupProbe> trial_;
};

}  // namespace

std::string described_cgroup(std::string_view description) {
  return std::string(description.starts_with(kDescribed) ? description.substr(kDescribed.size())
                                                         : std::string_view());
}

Result<std::unique_ptr<Containment>> make_cgroup(const ContainmentRequest& request) {
  if (Descriptor fd; !request.proved_cgroup.empty() && (fd = open_directory(request.proved_cgroup)))
    return std::unique_ptr<Containment>(
        std::make_unique<Cgroup>(request.proved_cgroup, std::move(fd), nullptr));
  const auto own = own_cgroup_v2_directory();
  if (!own) return Error{Code::kUnavailable, "cgroup v2 is not mounted here"};
  const std::string directory = *own + "/ivy-" + request.job_id.substr(0, kJobIdDigitsInName) +
                                "-" + std::to_string(request.host);
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return errno_error(Code::kUnavailable, "mkdir " + directory, errno);
  }
  Descriptor fd = open_directory(directory);
  if (!fd) return errno_error(Code::kUnavailable, "open " + directory, errno);
  auto trial = std::make_unique<CgroupProbe>(fd.get());
  if (trial->error() != 0) {
    rmdir(directory.c_str());
    return errno_error(Code::kUnavailable, "cannot create a process in " + directory,
                       trial->error());
  }
  return std::unique_ptr<Containment>(
      std::make_unique<Cgroup>(directory, std::move(fd), std::move(trial)));
}

}  // namespace ivy
