// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/app_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "agent/node/spawn/spawn.h"
#include "agent/node/workers/worker.h"
#include "proto/os/files.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr int kConnectMs = 500;
constexpr std::size_t kShownLines = 20;
constexpr std::size_t kShownBytes = 16u << 10;

// Returns the last lines of a file.
std::string end_of_file(const std::string& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  lseek(fd.get(), std::max<off_t>(0, size - static_cast<off_t>(kShownBytes)), SEEK_SET);
  std::string text = read_from(fd.get(), 2 * kShownBytes).value_or("");
  while (text.ends_with('\n')) text.pop_back();
  std::size_t begin = text.size();
  for (std::size_t lines = 0; lines < kShownLines && begin != std::string::npos && begin > 0;
       ++lines)
    begin = text.rfind('\n', begin - 1);
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

std::string end_text(const ExitStatus& status) {
  if (status.signal == 0) return "exited with code " + std::to_string(status.code);
  return "was killed by signal " + std::to_string(status.signal) + " (" + strsignal(status.signal) +
         ")";
}

}  // namespace

Environment service_environment(const google::protobuf::RepeatedPtrField<Variable>& own) {
  Environment environment = inherited_environment(environ, {});
  for (const char* name : {"IVY_JOB_ID", "IVY_HOST_INDEX"})
    if (const char* const value = std::getenv(name)) set_variable(environment, name, value);
  for (const Variable& variable : own) set_variable(environment, variable.name(), variable.value());
  return environment;
}

bool AppChild::start(const Environment& environment, const std::string& path) {
  SpawnRequest request;
  request.arguments.assign(server_.arguments().begin(), server_.arguments().end());
  request.environment = environment;
  std::array<char, 4096> here{};
  request.working_directory = getcwd(here.data(), here.size()) == nullptr ? "/" : here.data();
  const std::string* const search = find_variable(environment, "PATH");
  int error = ENOENT;
  const Result<std::string> found =
      path.empty() ? find_executable(server_.arguments(0), search == nullptr ? "" : *search,
                                     request.working_directory, &error)
                   : Result<std::string>(path);
  request.executable = found.ok() ? *found : "";
  Descriptor log;
  if (!server_.is_shown()) {
    log.reset(open(log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    request.stdout_fd = request.stderr_fd = log.get();
  } else {
    request.stdin_fd = STDIN_FILENO;
    request.stdout_fd = STDOUT_FILENO;
    request.stderr_fd = STDERR_FILENO;
  }
  SpawnResult result;
  if (found.ok()) result = spawn(request);
  if (result.ok()) {
    pid_ = result.process.pid;
    const Descriptor pidfd(result.process.pidfd);
    return true;
  }
  if (found.ok()) error = result.failure.error;
  std::fprintf(stderr, "ivyrun: error[IVY-R018]: %s cannot be started: %s: %s\n",
               server_.role().c_str(), server_.arguments(0).c_str(), std::strerror(error));
  return false;
}

void AppChild::collect() {
  if (pid_ == 0 || ended_) return;
  siginfo_t info{};
  constexpr int kLeaveUnreaped = WEXITED | WNOHANG | WNOWAIT;
  ended_ =
      waitid(P_PID, static_cast<id_t>(pid_), &info, kLeaveUnreaped) == 0 && info.si_pid == pid_;
  if (ended_) status_ = exit_status_from_wait(info.si_code, info.si_status);
}

bool AppChild::reap() {
  if (pid_ == 0 || has_group_exited_) return false;
  if (ended_) waitpid(pid_, nullptr, WNOHANG);
  has_group_exited_ = kill(-pid_, 0) != 0 && errno == ESRCH;
  return !has_group_exited_;
}

bool AppChild::check_ready() {
  if (was_ready_ || server_.ready_address().empty()) return true;
  SocketAddress address = parse_with_port(server_.ready_address());
  const Descriptor fd(address.open_socket());
  if (!fd) return false;
  if (connect(fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) return false;
  pollfd connected{fd.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof error;
  const bool is_connected = poll(&connected, 1, kConnectMs) == 1 &&
                            getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
                            error == 0;
  was_ready_ = is_connected && (server_.ready_path().empty() || answers_path(fd.get()));
  return was_ready_;
}

bool AppChild::answers_path(int fd) const {
  const std::string request = "GET " + server_.ready_path() +
                              " HTTP/1.1\r\nHost: " + server_.ready_address() +
                              "\r\nConnection: close\r\n\r\n";
  if (!write_all(fd, request)) return false;
  pollfd answered{fd, POLLIN, 0};
  constexpr int kAnswerMs = 5000;
  if (poll(&answered, 1, kAnswerMs) != 1) return false;
  std::array<char, 64> bytes{};
  const ssize_t count = recv(fd, bytes.data(), bytes.size(), 0);
  return count > 0 && std::string_view(bytes.data(), static_cast<std::size_t>(count))
                              .substr(0, 13)
                              .find(" 200") != std::string_view::npos;
}

void AppChild::send(int signal) const {
  if (pid_ != 0 && !ended_) kill(pid_, signal);
}

void AppChild::kill_group(int signal) const {
  if (pid_ != 0 && !has_group_exited_) kill(-pid_, signal);
}

void AppChild::print_exit(const std::string& app) const {
  std::fprintf(stderr, "ivyrun: error[IVY-R018]: %s: its %s %s before the program exited\n",
               app.c_str(), server_.role().c_str(), end_text(status_).c_str());
  if (last_line().find("No module named") != std::string::npos)
    std::fprintf(stderr,
                 "  fix:   install it for %s on this host, or name a Python that has it on every "
                 "host: --python PATH\n",
                 server_.arguments(0).c_str());
  show_last_lines();
}

void AppChild::show_last_lines() const {
  if (server_.is_shown()) return;
  const std::string lines = end_of_file(log_path());
  std::fprintf(stderr, "the last lines of %s:\n%s\n", server_.role().c_str(), lines.c_str());
}

std::string AppChild::last_line() const {
  const std::string lines = end_of_file(log_path());
  return lines.substr(lines.rfind('\n') == std::string::npos ? 0 : lines.rfind('\n') + 1);
}

}  // namespace ivy
