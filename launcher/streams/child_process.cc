// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "proto/contract/core_limit.h"
#include "proto/os/old_kernels.h"
#include "proto/os/process.h"
#include "proto/os/spawn_setup.h"

namespace ivy {
namespace {

int running = 0;  // Children that have not been reaped.

// The children with ChildRequest::is_connection; a child keeps itself alive until it has exited.
std::vector<std::weak_ptr<ChildProcess>>& connection_children() {
  static std::vector<std::weak_ptr<ChildProcess>> children;
  return children;
}

std::vector<std::shared_ptr<ChildProcess>> running_connections() {
  std::vector<std::shared_ptr<ChildProcess>> children;
  for (const std::weak_ptr<ChildProcess>& each : connection_children())
    if (std::shared_ptr<ChildProcess> child = each.lock(); child && !child->ended())
      children.push_back(std::move(child));
  return children;
}

void set_standard_stream(SpawnSetup& setup, int number, int fd) {
  fd >= 0 ? setup.copy(fd, number) : setup.open_null(number);
}

Code code_of_spawn_error(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
      return Code::kPermissionDenied;
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    default:
      return Code::kInternal;
  }
}

Result<pid_t> start_program(const ChildRequest& request) {
  SpawnSetup setup;
  // The caller's descriptors have numbers above 3 (they were opened while the standard ones
  // existed), so no dup2() overwrites one that is still to be copied.
  set_standard_stream(setup, 0, request.stdin_fd);
  set_standard_stream(setup, 1, request.stdout_fd);
  set_standard_stream(setup, 2, request.stderr_fd);
  if (request.third_fd >= 0) setup.copy(request.third_fd, 3);
  setup.close_from(request.third_fd >= 0 ? 4 : 3);
  setup.set_signals_and_session();
  pid_t pid = -1;
  const std::vector<char*> arguments = exec_array(request.arguments);
  const std::vector<std::string> texts =
      request.environment ? *request.environment : environment_texts(tool_environment());
  const std::vector<char*> environment = exec_array(texts);
  const UsersCoreLimit limit;
  const int error = posix_spawnp(&pid, arguments[0], &setup.actions, &setup.attributes,
                                 arguments.data(), environment.data());
  if (error == 0) return pid;
  Error failed = errno_error(code_of_spawn_error(error), "start " + request.arguments[0], error);
  if (error == EPERM) failed.fix = clone_fix();
  return failed;
}

}  // namespace

Environment tool_environment() {
  Environment environment = environment_of(environ);
  std::erase_if(environment, [](const EnvVariable& variable) {
    return variable.name == "LD_LIBRARY_PATH" || variable.name == "LD_PRELOAD";
  });
  return environment;
}

std::vector<std::string> environment_texts(const Environment& environment) {
  std::vector<std::string> texts;
  for (const EnvVariable& variable : environment)
    texts.push_back(variable.name + "=" + variable.value);
  return texts;
}

Result<std::shared_ptr<ChildProcess>> ChildProcess::start(boost::asio::io_context& loop,
                                                          const ChildRequest& request) {
  std::shared_ptr<ChildProcess> child =
      IVY_TRY(adopt(loop, IVY_TRY(start_program(request)), request.arguments[0]));
  if (request.is_connection) {
    std::erase_if(connection_children(), [](const auto& earlier) { return earlier.expired(); });
    connection_children().push_back(child);
  }
  return child;
}

Result<std::shared_ptr<ChildProcess>> ChildProcess::adopt(boost::asio::io_context& loop, pid_t pid,
                                                          const std::string& name) {
  const int pidfd = open_pidfd(pid);
  if (pidfd < 0) {
    const int error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return pidfd_error("watch " + name, error);
  }
  std::shared_ptr<ChildProcess> child(new ChildProcess(loop, pid, pidfd));
  child->watch();
  return child;
}

ChildProcess::ChildProcess(boost::asio::io_context& loop, pid_t pid, int pidfd)
    : pid_(pid), pidfd_(loop, pidfd), reap_timer_(loop) {
  ++running;
}

bool ChildProcess::any_runs() { return running > 0; }

bool ChildProcess::terminate_connections() {
  const auto children = running_connections();
  for (const std::shared_ptr<ChildProcess>& child : children) child->signal(SIGTERM);
  return !children.empty();
}

bool ChildProcess::kill_connections() {
  const auto children = running_connections();
  for (const std::shared_ptr<ChildProcess>& child : children) child->kill_group();
  return !children.empty();
}

ChildProcess::~ChildProcess() { reap(); }

void ChildProcess::watch() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (!error) self->collect();
                    });
}

void ChildProcess::collect() {
  reap();
  if (status_) {
    if (on_end_) std::exchange(on_end_, {})(*status_);
    return;
  }
  reap_timer_.expires_after(kReapPause);
  reap_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->collect();
  });
}

const std::optional<ExitStatus>& ChildProcess::ended() {
  reap();
  return status_;
}

void ChildProcess::signal(int number) {
  if (!status_) syscall(SYS_pidfd_send_signal, pidfd_.native_handle(), number, nullptr, 0);
}

void ChildProcess::kill_group() {
  // The number stays the group's until the child has been reaped.
  if (!status_ && kill(-pid_, SIGKILL) != 0) signal(SIGKILL);
}

void ChildProcess::end_within(boost::asio::io_context& loop) {
  on_end_ = {};
  const auto timer = std::make_shared<boost::asio::steady_timer>(loop, kEndTimeout);
  timer->async_wait([self = shared_from_this(), timer](const boost::system::error_code& error) {
    if (error) return;
    self->signal(SIGTERM);
    timer->expires_after(kEndTimeout);
    timer->async_wait([self, timer](const boost::system::error_code& stopped) {
      if (!stopped) self->kill_group();
    });
  });
}

void ChildProcess::reap() {
  if (status_) return;
  siginfo_t info{};
  const int rc = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  if (rc == 0 && info.si_pid == pid_) {
    status_ = exit_status_from_wait(info.si_code, info.si_status);
  } else if (rc != 0 && errno == ECHILD) {
    // Our parent ignored SIGCHLD, and we inherit that: the kernel reaps the child and keeps no
    // status.
    status_ = ExitStatus{};
  }
  if (status_) --running;
}

Result<PipedChild> start_piped(boost::asio::io_context& loop, ChildRequest request) {
  DescriptorPair input = make_pipe(), output = make_pipe(), errors = make_pipe();
  if (!input || !output || !errors)
    return errno_error(Code::kResourceExhausted, "pipes for " + request.arguments.front(), errno);
  request.stdin_fd = input.first.get();
  request.stdout_fd = output.second.get();
  request.stderr_fd = errors.second.get();
  for (const Descriptor* end : {&input.second, &output.first, &errors.first})
    fcntl(end->get(), F_SETFL, O_NONBLOCK);
  return PipedChild{IVY_TRY(ChildProcess::start(loop, request)), std::move(input.second),
                    std::move(output.first), std::move(errors.first)};
}

}  // namespace ivy
