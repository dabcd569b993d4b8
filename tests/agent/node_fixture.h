// SPDX-License-Identifier: Apache-2.0
// Shared by tests of the node: small programs as workers, their output and their exit.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include "agent/node/spawn/spawn.h"
#include "proto/contract/exit_code.h"
#include "tests/support/eventually.h"

namespace ivy::test {

inline std::string child_program(const std::string& name) {
  return std::string(IVY_TEST_CHILDREN) + "/" + name;
}

// Unique per call, so that no test finds files of another one.
inline std::string random_job_id() {
  std::random_device device;
  std::string id;
  while (id.size() < 32) id += "0123456789abcdef"[device() % 16];
  return id;
}

inline SpawnRequest request_for(const std::string& child, std::vector<std::string> arguments = {}) {
  SpawnRequest request;
  request.executable = child_program(child);
  request.arguments = std::move(arguments);
  request.arguments.insert(request.arguments.begin(), child);
  request.working_directory = "/";
  return request;
}

inline Environment job_environment(const std::string& job_id, unsigned host) {
  return {{"IVY_JOB_ID", job_id}, {"IVY_HOST_INDEX", std::to_string(host)}};
}

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) abort();
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int reader() const { return ends[0]; }
  int writer() const { return ends[1]; }
  void close_end(std::size_t i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
};

// Reads until the end of file, or with kLine until the text ends with a newline.
enum class ReadUntil { kEnd, kLine };
inline std::string read_text(int fd, ReadUntil until) {
  std::string text;
  std::array<char, 65536> buffer;
  const auto deadline = std::chrono::steady_clock::now() + scaled_time(std::chrono::seconds(20));
  while (std::chrono::steady_clock::now() < deadline) {
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, 100) <= 0) continue;
    const std::size_t wanted = until == ReadUntil::kLine ? 1 : buffer.size();
    const ssize_t count = read(fd, buffer.data(), wanted);
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (until == ReadUntil::kLine && text.back() == '\n') break;
  }
  return text;
}

// Waits for the pidfd, reaps the process, closes the pidfd.
inline ExitStatus wait_exit(const SpawnedProcess& process) {
  pollfd waiting{process.pidfd, POLLIN, 0};
  const int timeout_ms = static_cast<int>(scaled_time(std::chrono::seconds(20)).count());
  if (poll(&waiting, 1, timeout_ms) != 1) kill(process.pid, SIGKILL);
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED) != 0) return {.code = -1};
  close(process.pidfd);
  return exit_status_from_wait(info.si_code, info.si_status);
}

struct Finished {
  SpawnResult spawned;
  ExitStatus status;
  std::string output;
};

// Spawns a process, collects its standard output, and waits for its exit.
inline Finished run_to_end(SpawnRequest request) {
  Pipe output;
  request.stdout_fd = output.writer();
  Finished finished;
  finished.spawned = spawn(request);
  output.close_end(1);
  if (!finished.spawned.ok()) return finished;
  finished.output = read_text(output.reader(), ReadUntil::kEnd);
  finished.status = wait_exit(finished.spawned.process);
  return finished;
}

// Spawns a child that reports one line when it is ready, and returns that line.
struct Running {
  SpawnedProcess process;
  std::string line;
};
inline Running start(SpawnRequest request) {
  Pipe output;
  request.stdout_fd = output.writer();
  const SpawnResult spawned = spawn(request);
  output.close_end(1);
  if (!spawned.ok()) return {};
  return Running{spawned.process, read_text(output.reader(), ReadUntil::kLine)};
}

// Returns true if the process is gone, or a zombie that only its parent still sees.
inline bool has_exited(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  std::array<char, 512> text{};
  const ssize_t count = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (count <= 0) return true;
  const std::string_view line(text.data());
  const std::size_t at = line.rfind(')');
  return at != std::string_view::npos && at + 2 < line.size() &&
         (line[at + 2] == 'Z' || line[at + 2] == 'X');
}

}  // namespace ivy::test
