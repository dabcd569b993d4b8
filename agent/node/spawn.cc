#include "agent/node/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

// Sanitizers keep state per process that only their own fork() wrapper carries over.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IVY_RAW_CLONE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IVY_RAW_CLONE 0
#else
#define IVY_RAW_CLONE 1
#endif
#else
#define IVY_RAW_CLONE 1
#endif

namespace ivy {
namespace {

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4u
#endif

// Where the child was when it failed; travels over the report pipe with an errno.
enum class Step : int { kSession, kCgroup, kStdin, kStdout, kStderr, kChdir, kExec, kCount };

constexpr std::array<const char*, static_cast<std::size_t>(Step::kCount)> kStepNames = {
    "setsid", "cgroup", "stdin", "stdout", "stderr", "chdir", "exec"};

struct Report {
  Step step;
  int error;
};

// Everything that the child needs, made before the clone: nothing is allocated after it.
struct ChildPlan {
  const char* executable;
  char* const* arguments;
  char* const* environment;
  const char* working_directory;
  std::array<int, 3> standard_fds;
  int cgroup_fd;
  int report_fd;
};

// ---- The child's side: async-signal-safe calls only ------------------------------------------

[[noreturn]] void give_up(const ChildPlan& plan, Step step, int error) {
  const Report report{step, error};
  // A pipe takes this many bytes at once or not at all; without it the parent sees a started child.
  [[maybe_unused]] const ssize_t written = write(plan.report_fd, &report, sizeof report);
  _exit(127);
}

// The C library refuses to touch the signals that it uses itself; a parent may ignore those as
// well.
void reset_signals() {
  constexpr std::size_t kKernelMaskBytes = 8;
  const std::array<unsigned long, 4>
      default_action{};  // The kernel's sigaction, all zero: SIG_DFL.
  for (int number = 1; number < _NSIG; ++number) {
    syscall(SYS_rt_sigaction, number, default_action.data(), nullptr, kKernelMaskBytes);
  }
}

void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void join_cgroup(const ChildPlan& plan) {
  const int fd = openat(plan.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) give_up(plan, Step::kCgroup, errno);
  close(fd);
}

void place_standard_descriptors(const ChildPlan& plan) {
  // First all away from 0..2, then into place: a source may itself be one of the three.
  std::array<int, 3> sources{};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Step step = static_cast<Step>(static_cast<int>(Step::kStdin) + static_cast<int>(i));
    int fd = plan.standard_fds[i];
    if (fd < 0) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    sources[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (sources[i] < 0) give_up(plan, step, errno);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Step step = static_cast<Step>(static_cast<int>(Step::kStdin) + static_cast<int>(i));
    if (dup2(sources[i], static_cast<int>(i)) < 0) give_up(plan, step, errno);
  }
}

struct DirectoryEntry {  // What getdents64 writes.
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

// For kernels before 5.11: marks every descriptor that /proc lists.
void mark_listed_descriptors() {
  const int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  alignas(DirectoryEntry) std::array<char, 4096> buffer;
  long bytes = 0;
  while ((bytes = syscall(SYS_getdents64, directory, buffer.data(), buffer.size())) > 0) {
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer.data() + at);
      const int fd = std::atoi(entry->name);
      if (fd >= 3) fcntl(fd, F_SETFD, FD_CLOEXEC);
      at += entry->length;
    }
  }
  close(directory);
}

void close_others_on_exec() {
  if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) != 0) mark_listed_descriptors();
}

void raise_limit(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);  // Lowering nothing and within the hard limit: cannot be refused.
}

[[noreturn]] void become_worker(const ChildPlan& plan, bool must_join_cgroup) {
  if (setsid() < 0) give_up(plan, Step::kSession, errno);
  reset_signals();
  if (must_join_cgroup) join_cgroup(plan);
  place_standard_descriptors(plan);
  close_others_on_exec();
  raise_limit(RLIMIT_MEMLOCK);
  raise_limit(RLIMIT_NOFILE);
  if (chdir(plan.working_directory) != 0) give_up(plan, Step::kChdir, errno);
  unblock_signals();
  execve(plan.executable, plan.arguments, plan.environment);
  give_up(plan, Step::kExec, errno);
}

// ---- The parent's side --------------------------------------------------------------------------

int open_pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0u)); }

// Returns twice, like fork; the child shares no memory. Not CLONE_VFORK: the next worker is born
// while this one executes its program.
pid_t raw_clone(int cgroup_fd, int* pidfd) {
#if IVY_RAW_CLONE
  clone_args arguments{};
  arguments.flags = CLONE_PIDFD;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(pidfd);
  arguments.exit_signal = SIGCHLD;
  if (cgroup_fd >= 0) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  }
  return static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
#else
  (void)cgroup_fd;
  (void)pidfd;
  errno = ENOSYS;
  return -1;
#endif
}

struct Birth {
  pid_t pid = -1;  // 0 in the child.
  int pidfd = -1;
  bool must_join_cgroup = false;
  int error = 0;
};

// Anything but a lack of resources may be a filter or an old kernel that plain fork gets past.
Birth give_birth(int cgroup_fd) {
  Birth birth;
  birth.pid = raw_clone(cgroup_fd, &birth.pidfd);
  if (birth.pid >= 0) return birth;
  birth.error = errno;
  if (birth.error == EAGAIN || birth.error == ENOMEM) return birth;
  birth.must_join_cgroup = cgroup_fd >= 0;
  birth.pid = fork();
  birth.error = birth.pid < 0 ? errno : 0;
  if (birth.pid <= 0) return birth;
  birth.pidfd = open_pidfd(birth.pid);
  if (birth.pidfd < 0) {
    birth.error = errno;
    kill(birth.pid, SIGKILL);
    waitpid(birth.pid, nullptr, 0);
    birth.pid = -1;
  }
  return birth;
}

// A signal between clone and exec must not run a handler of the parent's in the child.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_block(const Environment& environment) {
  std::vector<std::string> block;
  block.reserve(environment.size());
  for (const EnvVariable& variable : environment) {
    block.push_back(variable.name + "=" + variable.value);
  }
  return block;
}

PendingSpawn failed(std::string step, int error) {
  PendingSpawn pending;
  pending.failure = SpawnFailure{std::move(step), {}, error};
  return pending;
}

std::string path_of_step(Step step, const PendingSpawn& pending) {
  if (step == Step::kChdir) return pending.working_directory;
  if (step == Step::kExec) return pending.executable;
  if (step == Step::kCgroup) return "cgroup.procs";
  return {};
}

// Descriptors 0..2 of this process may be closed; the report pipe must survive the dup2 onto them.
bool make_report_pipe(std::array<int, 2>& ends) {
  std::array<int, 2> low{};
  if (pipe2(low.data(), O_CLOEXEC) != 0) return false;
  for (std::size_t i = 0; i < 2; ++i) ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 3);
  for (const int fd : low) close(fd);
  if (ends[0] >= 0 && ends[1] >= 0) return true;
  for (const int fd : ends) {
    if (fd >= 0) close(fd);
  }
  return false;
}

}  // namespace

PendingSpawn begin_spawn(const SpawnRequest& request) {
  std::vector<std::string> arguments = request.arguments;
  std::vector<std::string> block = environment_block(request.environment);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> block_pointers = pointers_to(block);
  std::array<int, 2> report{};
  if (!make_report_pipe(report)) return failed("pipe", errno);
  const ChildPlan plan{.executable = request.executable.c_str(),
                       .arguments = argument_pointers.data(),
                       .environment = block_pointers.data(),
                       .working_directory = request.working_directory.c_str(),
                       .standard_fds = {request.stdin_fd, request.stdout_fd, request.stderr_fd},
                       .cgroup_fd = request.cgroup_fd,
                       .report_fd = report[1]};
  Birth birth;
  {
    const AllSignalsBlocked blocked;
    birth = give_birth(request.cgroup_fd);
    if (birth.pid == 0) become_worker(plan, birth.must_join_cgroup);
  }
  close(report[1]);
  if (birth.pid < 0) {
    close(report[0]);
    return failed("clone", birth.error);
  }
  PendingSpawn pending;
  pending.process = SpawnedProcess{birth.pid, birth.pidfd};
  pending.report_fd = report[0];
  pending.executable = request.executable;
  pending.working_directory = request.working_directory;
  return pending;
}

SpawnResult finish_spawn(const PendingSpawn& pending) {
  SpawnResult result;
  result.failure = pending.failure;
  if (pending.report_fd < 0) return result;
  Report report{};
  ssize_t count = 0;
  do {
    count = read(pending.report_fd, &report, sizeof report);
  } while (count < 0 && errno == EINTR);
  close(pending.report_fd);
  if (count != static_cast<ssize_t>(sizeof report)) {
    result.process = pending.process;
    return result;
  }
  while (waitpid(pending.process.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(pending.process.pidfd);
  result.failure = SpawnFailure{kStepNames[static_cast<std::size_t>(report.step)],
                                path_of_step(report.step, pending), report.error};
  return result;
}

SpawnResult spawn(const SpawnRequest& request) { return finish_spawn(begin_spawn(request)); }

int try_birth_in_cgroup(int cgroup_fd) {
  const AllSignalsBlocked blocked;
  const Birth birth = give_birth(cgroup_fd);
  if (birth.pid == 0) {
    if (!birth.must_join_cgroup) _exit(0);
    const int fd = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    _exit(fd >= 0 && write(fd, "0", 1) == 1 ? 0 : errno & 0xff);
  }
  if (birth.pid < 0) return birth.error;
  int status = 0;
  while (waitpid(birth.pid, &status, 0) < 0 && errno == EINTR) {
  }
  close(birth.pidfd);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

namespace {

// 0, or why this file cannot be executed: ENOENT, EACCES, EISDIR...
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

std::string joined(const std::string& directory, const std::string& name) {
  if (name.starts_with('/') || directory.empty()) return name;
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

Error not_executable(const std::string& what, int error) {
  return errno_error(
      error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kPermissionDenied, what, error);
}

}  // namespace

Result<std::string> find_executable(const std::string& name, const std::string& search_path,
                                    const std::string& working_directory, int* errno_value) {
  int error = ENOENT;
  std::string found;
  if (name.find('/') != std::string::npos) {
    found = joined(working_directory, name);
    error = why_not_executable(found);
  } else if (!name.empty()) {
    std::size_t begin = 0;
    while (begin <= search_path.size() && error != 0) {
      const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
      // An empty part of PATH means the working directory.
      const std::string part = search_path.substr(begin, end - begin);
      const std::string candidate = joined(joined(working_directory, part), name);
      const int why = why_not_executable(candidate);
      if (why == 0) found = candidate;
      // What exists but cannot be run says more than that the other places have nothing.
      if (why == 0 || (why != ENOENT && why != ENOTDIR && error == ENOENT)) error = why;
      begin = end + 1;
    }
  }
  if (errno_value != nullptr) *errno_value = error;
  if (error != 0) return not_executable(name, error);
  return found;
}

}  // namespace ivy
