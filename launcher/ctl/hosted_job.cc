// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/hosted_job.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <tuple>

#include "launcher/job/control/launcher_directory.h"
#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/own_directory.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

std::optional<HostedJob> parse_name(const std::string& parent, std::string_view name) {
  if (name.size() < kJobIdDigits + 2 || name[kJobIdDigits] != '-') return std::nullopt;
  const std::string job_id(name.substr(0, kJobIdDigits));
  const auto host = to_number<std::uint32_t>(name.substr(kJobIdDigits + 1));
  if (!is_job_id(job_id) || !host) return std::nullopt;
  return HostedJob{job_id, *host, parent + "/" + std::string(name)};
}

// Returns true if the job's warden or supervisor holds the directory's lock
// (agent/node/spawn/job_directory.h). Does not use the socket: a stopped process accepts no
// connection, and each attempt would fill its backlog.
bool is_locked(const HostedJob& job) {
  const Descriptor lock(
      open(job.directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock) return errno != ENOENT;
  return flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// Returns the process that listens on the job's command socket, which is its warden; std::nullopt
// if there is none.
std::optional<pid_t> warden_of(const HostedJob& job) {
  SocketAddress address = unix_address(job.directory + "/command.sock");
  if (!address.is_valid()) return std::nullopt;
  const Descriptor socket(address.open_socket());
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool answers = socket && connect(socket.get(), address.get(), address.size) == 0 &&
                       getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
                       peer.uid == geteuid();
  return answers && peer.pid > 0 ? std::optional<pid_t>(peer.pid) : std::nullopt;
}

// The environment of a process may take megabytes.
constexpr std::size_t kMaxTextBytes = 8u << 20;

// Returns an empty text if the process has exited in the meantime, because reading then fails.
std::string text_of(const std::string& path) { return read_file(path, kMaxTextBytes).value_or(""); }

struct ProcessLine {
  std::string name;
  char state = 0;
  pid_t parent = 0;
  int threads = 0;
  std::uint64_t start_time = 0;  // The start time in clock ticks since boot.
};

std::optional<ProcessLine> line_of(pid_t pid) {
  const std::string all = text_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t begin = all.find('(');
  const std::size_t end = all.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  ProcessLine line;
  line.name = all.substr(begin + 1, end - begin - 1);
  std::istringstream rest(all.substr(end + 1));
  std::string skipped;
  rest >> line.state >> line.parent;
  for (int field = 5; field < 20; ++field) rest >> skipped;  // The field num_threads is the 20th.
  rest >> line.threads >> skipped >> line.start_time;
  return rest ? std::optional<ProcessLine>(line) : std::nullopt;
}

// The kernel reports a process as a zombie even if only its main thread has exited.
bool has_ended(const ProcessLine& line) {
  return (line.state == 'Z' || line.state == 'X') && line.threads <= 1;
}

// Reads the environment from the process's directory in /proc, or from a thread's if the main
// thread has exited.
std::string environment_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::string environment = text_of(process + "/environ");
  if (!environment.empty()) return environment;
  for (const std::string& thread : names_in(process + "/task")) {
    environment = text_of(process + "/task/" + thread + "/environ");
    if (!environment.empty()) break;
  }
  return environment;
}

bool is_of_this_user(pid_t pid) {
  struct stat status {};
  return stat(("/proc/" + std::to_string(pid)).c_str(), &status) == 0 && status.st_uid == geteuid();
}

bool is_supervisor_of(pid_t pid, pid_t warden) {
  const std::optional<ProcessLine> line = line_of(pid);
  return line && line->name == "ivy-supervisor" && line->parent == warden && line->state != 'Z';
}

// Never signals another process that reused the pid in the meantime.
bool terminate_supervisor(pid_t pid, pid_t warden) {
  const Descriptor process(open_pidfd(pid));
  return process && is_supervisor_of(pid, warden) &&
         syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0u) == 0;
}

}  // namespace

std::vector<HostedJob> find_hosted_jobs() {
  std::vector<HostedJob> found;
  for (const std::string& parent : job_parents()) {
    if (!is_own_directory(parent)) continue;
    for (const std::string& name : names_in(parent)) {
      const std::optional<HostedJob> job = parse_name(parent, name);
      if (job && is_own_directory(job->directory) && is_locked(*job)) found.push_back(*job);
    }
  }
  std::sort(found.begin(), found.end(), [](const HostedJob& a, const HostedJob& b) {
    return std::tie(a.job_id, a.host) < std::tie(b.job_id, b.host);
  });
  return found;
}

std::vector<pid_t> launchers_with_another_tmp() {
  std::vector<pid_t> found;
  struct stat own {};
  if (stat("/tmp/.", &own) != 0) return found;
  for (const std::string& name : names_in("/proc")) {
    const pid_t pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    if (pid <= 0 || pid == getpid() || !is_of_this_user(pid)) continue;
    const std::optional<ProcessLine> line = line_of(pid);
    if (!line || line->name != "ivyrun" || has_ended(*line)) continue;
    struct stat its {};
    if (stat(("/proc/" + name + "/root/tmp/.").c_str(), &its) != 0) continue;
    if (its.st_dev != own.st_dev || its.st_ino != own.st_ino) found.push_back(pid);
  }
  return found;
}

bool request_stop(const HostedJob& job) {
  const std::optional<pid_t> warden = warden_of(job);
  if (!warden) return false;
  for (const std::string& name : names_in("/proc")) {
    const pid_t pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    // The warden ignores signals; its supervisor ends the job in an orderly way on SIGTERM.
    if (pid <= 1 || !is_supervisor_of(pid, *warden)) continue;
    mark_stop(job.directory);
    return terminate_supervisor(pid, *warden);
  }
  return false;
}

const std::vector<HostedProcess>& HostedProcesses::refresh() {
  std::erase_if(known_, [](const HostedProcess& process) {
    const std::optional<ProcessLine> line = line_of(process.pid);
    return !line || has_ended(*line) || line->start_time != process.start_time;
  });
  const std::string variable = std::string(1, '\0') + "IVY_JOB_ID=" + job_id_ + '\0';
  for (const std::string& name : names_in("/proc")) {
    const pid_t pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    if (pid <= 1 || pid == getpid() || !is_of_this_user(pid)) continue;
    if (std::any_of(known_.begin(), known_.end(),
                    [&](const HostedProcess& process) { return process.pid == pid; }))
      continue;
    const std::optional<ProcessLine> line = line_of(pid);
    if (!line || has_ended(*line)) continue;
    const std::string environment = std::string(1, '\0') + environment_of(pid) + '\0';
    if (environment.find(variable) != std::string::npos)
      known_.push_back({pid, line->start_time, line->name});
  }
  return known_;
}

}  // namespace ivy
