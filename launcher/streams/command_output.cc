// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/command_output.h"

#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <utility>

#include "launcher/streams/child_process.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/remote_text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/old_kernels.h"
#include "proto/os/process.h"
#include "proto/os/spawn_setup.h"

namespace ivy {
namespace {

// A list of hosts may come from a server that is slow, but no job should wait for longer.
constexpr std::chrono::seconds kHostsFromDeadline{60};
// Enough for the last line of standard error.
constexpr std::size_t kMaxErrorBytes = 16u << 10;
constexpr std::size_t kReadBytes = 64u << 10;
// Reads in a row from one pipe, as much as a pipe holds. A command that never stops printing must
// not keep the deadline from being checked.
constexpr int kMaxReads = 16;

std::string last_line(std::string_view text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == text.npos) return {};
  text = text.substr(0, end + 1);
  return RemoteText(std::string(text.substr(text.find_last_of('\n') + 1))).line();
}

// A command that is running. Killed, with its process group, at the end of this object at the
// latest.
class RunningCommand {
 public:
  explicit RunningCommand(const CommandRequest& request) : request_(request) {}
  ~RunningCommand() { end(); }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  Result<void> start();
  Result<std::string> finish();

 private:
  Error error(Code code, const std::string& what) const {
    return Error{code, request_.name + ": " + what};
  }
  // Reads until the command has exited and its pipes are empty.
  Result<void> read_all();
  // Reads what the pipe has now, and keeps the last bytes of it. Closes it at the end of file.
  static void read(Descriptor& pipe, std::string& text, std::size_t kept);
  // Kills what is left, and returns how the command ended.
  ExitStatus end();

  const CommandRequest& request_;
  pid_t pid_ = -1;  // -1: not started, or reaped.
  Descriptor pidfd_, output_, errors_;
  std::string text_, error_text_;
};

Result<void> RunningCommand::start() {
  DescriptorPair output = make_pipe(), errors = make_pipe();
  if (!output || !errors)
    return errno_error(Code::kResourceExhausted, request_.name + ": pipes", errno);
  for (const Descriptor* end : {&output.first, &errors.first})
    fcntl(end->get(), F_SETFL, O_NONBLOCK);
  SpawnSetup setup;
  setup.open_null(0);
  setup.copy(output.second.get(), 1);
  setup.copy(errors.second.get(), 2);
  setup.close_from(3);
  setup.set_signals_and_session();
  const std::vector<char*> arguments = exec_array(request_.arguments);
  const std::vector<std::string> texts = environment_texts(request_.environment);
  const std::vector<char*> environment = exec_array(texts);
  const int failed = posix_spawnp(&pid_, arguments[0], &setup.actions, &setup.attributes,
                                  arguments.data(), environment.data());
  if (failed != 0) {
    pid_ = -1;
    Error why = errno_error(failed == ENOENT ? Code::kNotFound : Code::kFailedPrecondition,
                            request_.name + ": start " + request_.arguments[0], failed);
    if (failed == EPERM) why.fix = clone_fix();
    return why;
  }
  pidfd_.reset(open_pidfd(pid_));
  if (!pidfd_) return pidfd_error(request_.name + ": watch " + request_.arguments[0], errno);
  output_ = std::move(output.first);
  errors_ = std::move(errors.first);
  return {};
}

void RunningCommand::read(Descriptor& pipe, std::string& text, std::size_t kept) {
  std::array<char, kReadBytes> buffer;
  for (int reads = 0; pipe && reads < kMaxReads; ++reads) {
    const ssize_t count = ::read(pipe.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) return pipe.reset();
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kept) text.erase(0, text.size() - kept);
  }
}

Result<void> RunningCommand::read_all() {
  const auto deadline = steady_now() + request_.deadline;
  for (bool has_exited = false; !has_exited;) {
    // poll() skips entries with negative descriptors.
    std::array<pollfd, 4> fds = {{{output_.get(), POLLIN, 0},
                                  {errors_.get(), POLLIN, 0},
                                  {pidfd_.get(), POLLIN, 0},
                                  {request_.cancel_fd, POLLIN, 0}}};
    const int ready = poll(fds.data(), fds.size(), milliseconds_until(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno_error(Code::kInternal, request_.name + ": poll", errno);
    if (fds[3].revents != 0) return error(Code::kCancelled, "cancelled");
    // Read once more after the exit: everything that it has printed is in the pipes by then. A
    // process that it left in the background is not waited for.
    has_exited = fds[2].revents != 0;
    // One byte more than allowed shows that there are too many.
    read(output_, text_, request_.max_bytes + 1);
    if (text_.size() > request_.max_bytes)
      return error(Code::kResourceExhausted, "the command printed more than " +
                                                 std::to_string(request_.max_bytes) + " bytes");
    read(errors_, error_text_, kMaxErrorBytes);
    if (!has_exited && steady_now() >= deadline)
      return error(Code::kDeadlineExceeded, "the command has not finished within " +
                                                std::to_string(request_.deadline.count() / 1000) +
                                                " s");
  }
  return {};
}

ExitStatus RunningCommand::end() {
  if (pid_ < 0) return {};
  // Before it is reaped, so that its number, which is that of the group, cannot be another's.
  kill(-pid_, SIGKILL);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  pid_ = -1;
  // The parent process of ivyrun may ignore SIGCHLD: then there is no status.
  return info.si_pid == 0 ? ExitStatus{} : exit_status_from_wait(info.si_code, info.si_status);
}

Result<std::string> RunningCommand::finish() {
  const Result<void> complete = read_all();
  const ExitStatus status = end();
  if (!complete.ok()) return complete.error();
  if (status.is_success()) return std::move(text_);
  std::string what = status.signal != 0
                         ? "the command was killed by " + signal_name(status.signal)
                         : "the command exited with code " + std::to_string(status.code);
  const std::string said = last_line(error_text_);
  return error(Code::kFailedPrecondition, what + (said.empty() ? "" : ": " + said));
}

// Blocks the signals that end this process, and makes them readable.
class EndingSignals {
 public:
  EndingSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      struct sigaction action {};
      // Signals that were ignored at our start (nohup) remain ignored.
      if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
        sigaddset(&set_, signal);
    }
    sigprocmask(SIG_BLOCK, &set_, &before_);
    fd_.reset(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~EndingSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  int fd() const { return fd_.get(); }
  // Ends this process by the signal that has arrived.
  [[noreturn]] void obey() {
    signalfd_siginfo info{};
    const bool is_read = ::read(fd_.get(), &info, sizeof info) == sizeof info;
    const int number = is_read ? static_cast<int>(info.ssi_signo) : SIGTERM;
    std::fflush(nullptr);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    raise(number);
    // The first process of a container is not ended by a signal that it does not handle.
    _exit(128 + number);
  }

 private:
  sigset_t set_{}, before_{};
  Descriptor fd_;
};

}  // namespace

Result<std::string> command_output(const CommandRequest& request) {
  RunningCommand command(request);
  IVY_CHECK(command.start());
  return command.finish();
}

Result<std::string> command_output_at_start(CommandRequest request) {
  EndingSignals signals;
  request.cancel_fd = signals.fd();
  Result<std::string> output = command_output(request);
  if (!output.ok() && output.error().code == Code::kCancelled) signals.obey();
  return output;
}

CommandRequest hosts_from_request(const std::string& command, const Environment& caller) {
  CommandRequest request;
  request.name = "--hosts-from";
  request.arguments = {"/bin/sh", "-c", command};
  request.environment = caller;
  request.deadline = kHostsFromDeadline;
  request.max_bytes = kMaxHostListBytes;
  return request;
}

}  // namespace ivy
