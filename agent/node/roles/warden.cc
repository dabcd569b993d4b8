// SPDX-License-Identifier: Apache-2.0
// keep_supervisor() is the sequence: prepare the job's directory and sockets, fork the supervisor,
// choose the containment, and wait. Unless the supervisor reports that nothing is left
// (await_exit_notice()), kill everything that is left (kill_everything()). The functions after it
// write the record for the agent and parse the command line.
#include "agent/node/roles/warden.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "agent/node/roles/drill.h"
#include "agent/node/roles/old_bundles.h"
#include "agent/node/spawn/choose_containment.h"
#include "agent/node/spawn/process_tree.h"
#include "agent/node/supervisor/supervisor_start.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/old_kernels.h"
#include "proto/os/own_program.h"
#include "proto/os/process.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLinkFd = 3;
constexpr int kMaxInheritedFd = 1024;
constexpr std::size_t kMaxRecordBytes = 128;
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(50);
// Longer than its tools need, and shorter than the lease of a silent host.
constexpr auto kDrillTaskTimeout = std::chrono::seconds(4);

// Drops everything inherited from the process that started us: the session, the working directory,
// and all descriptors except the link.
void detach_from_parent(int link_fd) {
  setsid();
  if (link_fd != kLinkFd) dup2(link_fd, kLinkFd);
  fcntl(kLinkFd, F_SETFD, FD_CLOEXEC);
  fcntl(kLinkFd, F_SETFL, fcntl(kLinkFd, F_GETFL) & ~O_NONBLOCK);
  const int null_fd = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) dup2(null_fd, fd);
  if (syscall(SYS_close_range, static_cast<unsigned>(kLinkFd + 1), ~0u, 0u) != 0) {
    for (int fd = kLinkFd + 1; fd < kMaxInheritedFd; ++fd)
      close(fd);  // The only way before Linux 5.9.
  }
  if (chdir("/") != 0) _exit(kWardenFailed);  // Only a process without a root fails here.
}

// SIGCHLD keeps its default action: if it were ignored, the kernel would reap the supervisor before
// us.
void ignore_signals() {
  for (int number = 1; number < NSIG; ++number) {
    signal(number, number == SIGCHLD ? SIG_DFL : SIG_IGN);
  }
}

void use_default_signals() {
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

int fail(const Error& error) {
  std::string line = kFailurePrefix + error.message;
  if (!error.fix.empty()) line += "; " + error.fix;
  std::ranges::replace(line, '\n', ' ');
  line += '\n';
  // The peer may have gone already; then the message is lost.
  send(kLinkFd, line.data(), line.size(), MSG_NOSIGNAL);
  return kWardenFailed;
}

Result<SupervisorStart> prepare(const WardenStart& start) {
  SupervisorStart prepared;
  prepared.job_id = start.job_id;
  prepared.host = start.host;
  prepared.program_directory = program_directory();
  prepared.link_fd = kLinkFd;
  prepared.peer = start.peer;
  prepared.records_outcome = !start.record.empty();
  prepared.step_task = start.step_task;
  prepared.warden_pid = getpid();
  prepared.warden_pidfd = open_pidfd(getpid());
  if (prepared.warden_pidfd < 0) {
    return pidfd_error("watch the warden", errno);
  }
  // Emulators such as qemu-user lack this call. Orphans of the job then become children of init,
  // and only the containment finds them.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 && errno != EINVAL) {
    return errno_error(Code::kFailedPrecondition, "become a subreaper", errno);
  }
  prepared.directory = IVY_TRY(make_job_directory(start.job_id, start.host));
  Result<int> listening = listen_on_command_socket(prepared.directory);
  if (!listening.ok()) {
    remove_job_directory(prepared.directory);
    return listening.error();
  }
  prepared.listening_fd = listening.value();
  return prepared;
}

// The pipes between warden and supervisor; each process closes the other's ends.
struct Pipes {
  DescriptorPair containment;
  DescriptorPair exit_notice;  // Not opened if no other process reaps the supervisor.

  void open(const WardenStart& start, SupervisorStart& supervisor) {
    containment = make_pipe();
    if (start.parent_reaps && start.record.empty()) exit_notice = make_pipe();
    supervisor.containment_fd = containment.first.get();
    supervisor.exit_notice_fd = exit_notice.second.get();
  }
  void close_warden_ends() {
    exit_notice.first.reset();
    containment.second.reset();
  }
  void close_supervisor_ends() {
    exit_notice.second.reset();
    containment.first.reset();
  }
};

[[noreturn]] void become_supervisor(const SupervisorStart& start, SupervisorMain supervisor_main) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // Orphans of the job become our children.
  use_default_signals();
  _exit(supervisor_main(start));
}

// Reports the result to the supervisor, which starts concurrently and would otherwise have to try
// the same.
std::unique_ptr<Containment> choose_containment(const ContainmentRequest& request,
                                                Descriptor pipe) {
  std::unique_ptr<Containment> containment = make_containment(request);
  write_all(pipe.get(), containment->describe());
  pipe.reset();
  containment->settle();
  return containment;
}

// Waits until the supervisor reports that it is the last process of the job
// (SupervisorStart::exit_notice_fd), and returns true; or until it exits without that report, and
// returns false.
bool await_exit_notice(pid_t supervisor, const Descriptor& pipe) {
  const Descriptor process(open_pidfd(supervisor));
  if (!pipe || !process) return false;
  pollfd waited[] = {{pipe.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
  while (poll(waited, 2, -1) < 0) IVY_ASSERT(errno == EINTR);
  char byte = 0;
  return waited[0].revents != 0 && read(pipe.get(), &byte, 1) == 1;
}

int wait_for(pid_t supervisor) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(-1, &status, 0)) != supervisor) {
    IVY_ASSERT(ended > 0 || errno == EINTR);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns true if no child is left, which for a subreaper means no descendant.
bool reap_all() {
  pid_t ended = 0;
  while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) {
  }
  return ended < 0 && errno == ECHILD;
}

// --drill: gives the task that has changed this host's network the time to change it back.
void await_drill_task(ProcessTree& tree) {
  const Clock::time_point deadline = Clock::now() + kDrillTaskTimeout;
  for (;;) {
    (void)reap_all();
    bool is_running = false;
    for (const JobProcess& process : tree.members()) {
      if (process.name != kDrillTaskName) continue;
      is_running = true;
      kill(process.pid, SIGTERM);
    }
    if (!is_running || Clock::now() > deadline) return;
    std::this_thread::sleep_for(kLongestPause);
  }
}

// Kills the members of both: the containment has the workers, the tree also has processes that the
// supervisor started for itself.
void kill_everything(Containment& containment, ProcessTree& tree) {
  await_drill_task(tree);
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(kWardenTimeoutMs);
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const bool is_childless = reap_all();
    if ((is_childless && containment.empty()) || Clock::now() > deadline) return;
    containment.kill_all();
    if (!is_childless) tree.kill_all();
    std::this_thread::sleep_for(pause);
  }
}

std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

int fail_without_supervisor(const JobDirectory& directory, int error) {
  remove_job_directory(directory);
  return fail(errno_error(Code::kUnavailable, "fork the supervisor", error));
}

// Sweeps on a thread: the cache may be on a file system that stops responding, and the processes
// that the supervisor leaves must be killed all the same.
void sweep_old_bundles_in(const std::string& program_directory) {
  if (!is_bundle_directory(program_directory.substr(program_directory.rfind('/') + 1))) return;
  try {
    std::thread([program_directory] { sweep_old_bundles(program_directory); }).detach();
  } catch (const std::system_error&) {
    // The limit of processes is reached; another job will sweep.
  }
}

// Called while the supervisor starts, so that no start waits for it.
void remove_dead_jobs_and_bundles(const JobDirectory& own) {
  remove_dead_jobs(own);
  sweep_old_bundles_in(program_directory());
}

// Runs from the supervisor's start until nothing of the job is left.
int keep_supervisor(const WardenStart& start, SupervisorMain supervisor_main) {
  Result<SupervisorStart> prepared = prepare(start);
  if (!prepared.ok()) return fail(prepared.error());
  Pipes pipes;
  pipes.open(start, *prepared);

  const pid_t supervisor = fork();
  if (supervisor == 0) {
    pipes.close_warden_ends();
    become_supervisor(*prepared, supervisor_main);
  }
  if (supervisor < 0) return fail_without_supervisor(prepared->directory, errno);
  pipes.close_supervisor_ends();
  // If we kept copies of these, the supervisor's peers would not notice its end.
  for (const int fd : {kLinkFd, prepared->listening_fd, prepared->warden_pidfd})
    Descriptor(fd).reset();

  // Created now, while memory is available and the supervisor's pid is certainly still its own.
  const ContainmentRequest request{.job_id = start.job_id,
                                   .host = start.host,
                                   .supervisor = supervisor,
                                   .warden = getpid(),
                                   .proved_cgroup = {},
                                   .in_step = start.step_task != 0};
  const std::unique_ptr<Containment> containment =
      choose_containment(request, std::move(pipes.containment.second));
  ProcessTree tree(request);
  remove_dead_jobs_and_bundles(prepared->directory);

  int exit_code = kSupervisorOk;
  if (!await_exit_notice(supervisor, pipes.exit_notice.first)) {
    exit_code = wait_for(supervisor);
    kill_everything(*containment, tree);
    containment->remove();
  }
  remove_job_directory(prepared->directory);
  return exit_code;
}

WardenRecord own_record() {
  WardenRecord record;
  ProcessStat self;
  record.pid = getpid();
  if (read_process_stat(record.pid, self)) record.start_time = self.start_time;
  return record;
}

// Ignores errors: a record that cannot be written (the disk is full) must not end a job. An agent
// that finds only the first record reports that the warden was killed. An agent that finds none
// reports the warden's exit code if it has reaped the warden, and otherwise that the job never
// started.
void write_record(const WardenStart& start, const WardenRecord& record) {
  // Only the final record must survive a power failure: the job has finished, so nothing waits for
  // the synchronization.
  write_whole(start.record, encode_warden_record(record),
              record.exit_code ? Durability::kSynced : Durability::kWhileTheHostRuns);
}

Error bad_argument(std::string_view name, std::string_view value) {
  return Error{Code::kInvalidArgument,
               "ivy-node warden: " + std::string(name) + " does not accept " + std::string(value)};
}

Result<void> take_argument(std::string_view name, std::string_view value, WardenStart& start) {
  const auto number = parse_number(value);
  if (name == "--job" && is_job_id(value)) {
    start.job_id = value;
  } else if (name == "--host" && number) {
    start.host = *number;
  } else if (name == "--transport-fd" && number && *number >= kLinkFd && *number <= INT32_MAX) {
    start.link_fd = static_cast<int>(*number);
  } else if (name == "--transport" && (value == "local" || value == "relay")) {
    start.peer = value == "local" ? LinkPeer::kLauncher : LinkPeer::kRelay;
  } else if (name == "--cgroup" && value.starts_with('/')) {
    start.cgroup = value;
  } else if (name == "--step" && number && *number > 1 && *number <= INT32_MAX) {
    start.step_task = static_cast<pid_t>(*number);
  } else if (name == "--reaper" && value == "parent") {
    start.parent_reaps = true;
  } else if (name == "--record" && value.starts_with('/')) {
    start.record = value;
  } else {
    return bad_argument(name, value);
  }
  return {};
}

}  // namespace

Result<WardenStart> parse_warden_arguments(int argc, char** argv) {
  WardenStart start;
  for (int i = 0; i < argc; i += 2) {
    if (i + 1 == argc) return bad_argument(argv[i], "nothing");
    IVY_CHECK(take_argument(argv[i], argv[i + 1], start));
  }
  if (start.job_id.empty())
    return Error{Code::kInvalidArgument, "ivy-node warden: --job is missing"};
  return start;
}

std::string encode_warden_record(const WardenRecord& record) {
  std::string text =
      "warden " + std::to_string(record.pid) + " " + std::to_string(record.start_time) + "\n";
  if (record.exit_code) text += "exit " + std::to_string(*record.exit_code) + "\n";
  return text;
}

std::optional<WardenRecord> parse_warden_record(std::string_view text) {
  WardenRecord record;
  int exit_code = 0;
  int length = 0;
  const std::string copy(text.substr(0, kMaxRecordBytes));
  if (std::sscanf(copy.c_str(), "warden %d %" SCNu64 "\n%n", &record.pid, &record.start_time,
                  &length) != 2 ||
      length == 0 || copy[static_cast<std::size_t>(length) - 1] != '\n' || record.pid <= 1) {
    return std::nullopt;
  }
  if (std::sscanf(copy.c_str() + length, "exit %d", &exit_code) == 1) record.exit_code = exit_code;
  return record;
}

Result<void> enter_cgroup(const WardenStart& start) {
  if (start.cgroup.empty()) return {};
  const std::string file = start.cgroup + "/cgroup.procs";
  const Descriptor fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && write(fd.get(), "0", 1) == 1) return {};
  return errno_error(Code::kUnavailable, "enter " + file, errno);
}

int reject_to_start(const WardenStart& start, const Error& why) {
  detach_from_parent(start.link_fd);
  if (!start.record.empty()) {
    WardenRecord record = own_record();
    record.exit_code = kWardenFailed;
    write_record(start, record);
  }
  return fail(why);
}

int run_warden(const WardenStart& start, SupervisorMain supervisor_main) {
  detach_from_parent(start.link_fd);
  prctl(PR_SET_NAME, "ivy-warden");
  ignore_signals();
  if (start.record.empty()) return keep_supervisor(start, supervisor_main);
  WardenRecord record = own_record();
  write_record(start, record);
  record.exit_code = keep_supervisor(start, supervisor_main);
  write_record(start, record);
  return *record.exit_code;
}

}  // namespace ivy
