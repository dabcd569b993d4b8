// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/server_child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "proto/contract/exit_code.h"
#include "proto/os/argument_file.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// Above the numbers that servers request, so that no descriptor is overwritten before it is moved.
constexpr int kAside = 64;

// Runs in the child of a process that may have other threads, so it must not allocate.
void place_descriptors(std::vector<std::pair<int, int>>& descriptors) {
  for (auto& [source, target] : descriptors) source = fcntl(source, F_DUPFD_CLOEXEC, kAside);
  for (const auto& [source, target] : descriptors)
    if (dup2(source, target) < 0) _exit(kExitInternal);
}

void reset_signals(bool in_step) {
  for (const int signal : {SIGINT, SIGHUP, SIGCHLD, SIGXFSZ, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  if (in_step)
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&blocked, signal);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace

pid_t start_server(ServerChild server, Descriptor* exec_error) {
  Descriptor arguments;
  if (!server.long_arguments.empty()) {
    // A number that none of the server's other descriptors has.
    arguments.reset(
        fcntl(make_argument_file(server.long_arguments).get(), F_DUPFD_CLOEXEC, kAside));
    if (!arguments) return -1;
    server.descriptors.emplace_back(arguments.get(), arguments.get());
    server.arguments.insert(server.arguments.end(),
                            {std::string(kArgumentsFd), std::to_string(arguments.get())});
  }
  DescriptorPair errors = make_pipe(O_NONBLOCK);
  if (!errors) return -1;
  std::vector<char*> pointers = exec_array(server.arguments);
  std::vector<char*> variables = exec_array(server.environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child > 0 && exec_error != nullptr) *exec_error = std::move(errors.first);
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitInternal);
  // place_descriptors() may overwrite its current number.
  const int errors_fd = fcntl(errors.second.get(), F_DUPFD_CLOEXEC, kAside);
  place_descriptors(server.descriptors);
  reset_signals(server.in_step);
  execve(server.program.c_str(), pointers.data(),
         server.environment.empty() ? environ : variables.data());
  const int why = errno;
  [[maybe_unused]] const ssize_t written = write(errors_fd, &why, sizeof why);
  _exit(why == ENOENT ? kExitNotFound : kExitNotExecutable);
}

std::string server_end(const std::string& name, int wait_status, const Descriptor& exec_error) {
  int why = 0;
  if (exec_error && read(exec_error.get(), &why, sizeof why) == sizeof why)
    return name + " could not be executed: " + strerror(why);
  if (!WIFSIGNALED(wait_status))
    return name + " exited with code " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return name + " was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

}  // namespace ivy
