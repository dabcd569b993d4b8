#include "launcher/hosted_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>

#include "proto/user_places.h"

namespace ivy {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using OpenDirectory = std::unique_ptr<DIR, CloseDirectory>;

bool is_private(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

std::optional<HostedJob> parse_name(const std::string& parent, std::string_view name) {
  if (name.size() < kJobIdDigits + 2 || name[kJobIdDigits] != '-') return std::nullopt;
  const std::string_view number = name.substr(kJobIdDigits + 1);
  HostedJob job{std::string(name.substr(0, kJobIdDigits)), 0, parent + "/" + std::string(name)};
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), job.host);
  if (!is_job_id(job.job_id) || parsed.ptr != number.data() + number.size()) return std::nullopt;
  return job;
}

// The process that listens on the job's command socket: its warden. Nothing: nobody does.
std::optional<pid_t> warden_of(const HostedJob& job) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = job.directory + "/command.sock";
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool answers =
      fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
  if (fd >= 0) close(fd);
  return answers && peer.pid > 0 ? std::optional<pid_t>(peer.pid) : std::nullopt;
}

bool is_supervisor_of(pid_t pid, pid_t warden) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const std::size_t end = all.rfind(')');
  if (end == std::string::npos || all.find("(ivy-supervisor)") == std::string::npos) return false;
  std::istringstream rest(all.substr(end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent == warden && state != 'Z';
}

// A pid that ends and is given to another between the look and the signal is not signalled.
bool terminate_supervisor(pid_t pid, pid_t warden) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0u));
  if (pidfd < 0) return false;
  const bool done = is_supervisor_of(pid, warden) &&
                    syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, nullptr, 0u) == 0;
  close(pidfd);
  return done;
}

}  // namespace

std::vector<HostedJob> find_hosted_jobs() {
  std::vector<HostedJob> found;
  for (const std::string& parent : job_parents(geteuid(), std::getenv("XDG_RUNTIME_DIR"))) {
    if (!is_private(parent)) continue;
    const OpenDirectory directory(opendir(parent.c_str()));
    if (!directory) continue;
    while (const dirent* entry = readdir(directory.get())) {
      const std::optional<HostedJob> job = parse_name(parent, entry->d_name);
      if (job && is_private(job->directory) && warden_of(*job)) found.push_back(*job);
    }
  }
  std::sort(found.begin(), found.end(), [](const HostedJob& a, const HostedJob& b) {
    return std::tie(a.job_id, a.host) < std::tie(b.job_id, b.host);
  });
  return found;
}

bool ask_to_end(const HostedJob& job) {
  const std::optional<pid_t> warden = warden_of(job);
  const OpenDirectory processes(opendir("/proc"));
  if (!warden || !processes) return false;
  while (const dirent* entry = readdir(processes.get())) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    // The warden heeds no signal; its supervisor ends the job in order on SIGTERM.
    if (pid > 1 && is_supervisor_of(pid, *warden)) return terminate_supervisor(pid, *warden);
  }
  return false;
}

}  // namespace ivy
