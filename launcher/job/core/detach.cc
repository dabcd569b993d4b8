// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/detach.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

// The signals that the launcher handles.
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t forwarded_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded) sigaddset(&set, signal);
  return set;
}

// Passes a signal on to the launcher, unless a terminal sent it to the whole process group.
void forward_signal(int signal_fd, pid_t launcher) {
  signalfd_siginfo info{};
  if (read(signal_fd, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  if (info.ssi_code != SI_KERNEL) kill(launcher, static_cast<int>(info.ssi_signo));
}

// The launcher has exited in the foreground: exits in the same way.
[[noreturn]] void end_like(pid_t launcher) {
  int status = 0;
  while (waitpid(launcher, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFSIGNALED(status)) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : kExitInternal);
  const int signal = WTERMSIG(status);
  const sigset_t set = forwarded_signals();
  std::signal(signal, SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
  _exit(128 + signal);
}

[[noreturn]] void stay_in_front(pid_t launcher, int pipe_fd, const DetachNotice& notice) {
  const sigset_t set = forwarded_signals();
  const int signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
  pollfd watched[2] = {{pipe_fd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
  for (;;) {
    if (poll(watched, 2, -1) < 0) continue;
    if ((watched[1].revents & POLLIN) != 0) forward_signal(signal_fd, launcher);
    if (watched[0].revents == 0) continue;
    char left = 0;
    if (read(pipe_fd, &left, 1) != 1) end_like(launcher);
    std::fputs(detach_notice(notice, launcher).c_str(), stdout);
    std::fflush(stdout);
    _exit(0);
  }
}

}  // namespace

std::string detach_notice(const DetachNotice& notice, int launcher_pid) {
  const std::string id = notice.job_id.substr(0, 12);
  const std::string job = notice.name.empty() ? id : notice.name;
  return "ivyrun: job " + id + " runs in the background, pid " + std::to_string(launcher_pid) +
         "\n  output: " + notice.log_dir + "\n  follow: ivyctl attach " + job +
         "\n  stop:   ivyctl stop " + job + "\n";
}

Result<std::unique_ptr<Detachment>> Detachment::begin(const DetachNotice& notice) {
  auto [parents_end, launchers_end] = make_pipe();
  if (!parents_end) return errno_error(Code::kResourceExhausted, "pipe", errno);
  const sigset_t set = forwarded_signals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &set, &before);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t launcher = fork();
  if (launcher < 0) {
    const Error error = errno_error(Code::kResourceExhausted, "fork", errno);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return error;
  }
  if (launcher > 0) {
    launchers_end.reset();
    stay_in_front(launcher, parents_end.get(), notice);
  }
  parents_end.reset();
  // Until the launcher leaves the foreground, killing the parent means stopping the job.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) raise(SIGTERM);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<Detachment>(new Detachment(std::move(launchers_end)));
}

void Detachment::leave(int log_fd) {
  if (has_left()) return;
  prctl(PR_SET_PDEATHSIG, 0);
  setsid();
  Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null) dup2(null.get(), STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) dup2(log_fd >= 0 ? log_fd : null.get(), fd);
  if (null.get() <= STDERR_FILENO) null.release();
  const char left = 1;
  // The parent may have been killed, so a failed write does not matter.
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), &left, 1);
  pipe_.reset();
}

}  // namespace ivy
