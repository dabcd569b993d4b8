// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/user_scope.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include "proto/os/cgroup_files.h"
#include "proto/os/descriptor.h"
#include "proto/os/own_program.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// Identifies the second start, and contains the descriptor on which it reports its arrival.
constexpr char kArrivalVariable[] = "IVY_NODE_SCOPE_FD";
// The user's systemd is reached through a socket in this directory; the variable is set only for
// that call.
constexpr char kRuntimeVariable[] = "XDG_RUNTIME_DIR";
constexpr char kRuntimeAddedVariable[] = "IVY_NODE_SCOPE_RUNTIME";

std::string runtime_directory() { return "/run/user/" + std::to_string(getuid()); }

bool would_help() {
  if (geteuid() == 0) return false;
  const std::string manager = runtime_directory() + "/systemd/private";
  if (access(manager.c_str(), W_OK) != 0) return false;
  const std::optional<std::string> own = own_cgroup_v2_directory();
  return own.has_value() && access(own->c_str(), W_OK) != 0;
}

// Runs in the second start: reports its arrival, and removes these variables from the environment
// that workers inherit.
void arrive(const char* descriptor) {
  const Descriptor fd(std::atoi(descriptor));
  // The waiting process may have given up; then nothing reads this.
  [[maybe_unused]] const ssize_t written = write(fd.get(), "", 1);
  unsetenv(kArrivalVariable);
  if (getenv(kRuntimeAddedVariable) != nullptr) unsetenv(kRuntimeVariable);
  unsetenv(kRuntimeAddedVariable);
}

[[noreturn]] void run_again(const std::string& unit, char** arguments, int arrival_fd) {
  setenv(kArrivalVariable, std::to_string(arrival_fd).c_str(), 1);
  if (getenv(kRuntimeVariable) == nullptr) {
    setenv(kRuntimeVariable, runtime_directory().c_str(), 1);
    setenv(kRuntimeAddedVariable, "1", 1);
  }
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) dup2(null_fd, fd);
  std::vector<std::string> words = {"systemd-run", "--user", "--scope", "--quiet", "--collect",
                                    "--unit=" + unit, "--property=Delegate=yes", "--",
                                    // systemd-run replaces itself, so /proc/self/exe cannot be
                                    // used.
                                    program_directory() + "/ivy-node"};
  for (char** argument = arguments + 1; *argument != nullptr; ++argument)
    words.emplace_back(*argument);
  const std::vector<char*> pointers = exec_array(words);
  execvp(pointers.front(), pointers.data());
  _exit(127);
}

// Returns true if arrive() has written its byte; false at end of file or on a timeout.
bool has_arrived(int fd) {
  pollfd entry{fd, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&entry, 1, kScopeTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  char byte = 0;
  return ready > 0 && read(fd, &byte, 1) == 1;
}

}  // namespace

ScopeStep enter_user_scope(const std::string& unit, char** arguments) {
  if (const char* descriptor = getenv(kArrivalVariable)) {
    arrive(descriptor);
    return ScopeStep::kRunHere;
  }
  if (!would_help()) return ScopeStep::kRunHere;
  DescriptorPair ends = make_pipe();
  if (!ends) return ScopeStep::kRunHere;
  fcntl(ends.second.get(), F_SETFD, 0);
  const pid_t child = fork();
  if (child == 0) run_again(unit, arguments, ends.second.get());
  ends.second.reset();
  const bool runs_in_scope = child > 0 && has_arrived(ends.first.get());
  if (runs_in_scope) return ScopeStep::kRunsInScope;
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return ScopeStep::kRunHere;
}

}  // namespace ivy
