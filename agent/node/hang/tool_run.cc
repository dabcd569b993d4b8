// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/tool_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "agent/node/spawn/spawn.h"

namespace ivy {

Result<std::unique_ptr<ToolRun>> ToolRun::start(const std::vector<std::string>& arguments,
                                                const Environment& environment,
                                                std::uint64_t deadline_ns) {
  DescriptorPair ends = make_pipe();
  if (!ends) return errno_error(Code::kUnavailable, "pipe", errno);
  fcntl(ends.first.get(), F_SETFL, O_NONBLOCK);
  SpawnRequest request;
  request.arguments = arguments;
  request.executable = arguments.front();
  request.environment = environment;
  request.working_directory = "/";
  request.stdout_fd = ends.second.get();
  request.stderr_fd = ends.second.get();
  const SpawnResult spawned = spawn(request);
  if (!spawned.ok())
    return errno_error(Code::kUnavailable, arguments.front() + ": " + spawned.failure.step,
                       spawned.failure.error);
  std::unique_ptr<ToolRun> run(new ToolRun());
  run->pid_ = spawned.process.pid;
  run->pidfd_.reset(spawned.process.pidfd);
  run->output_fd_ = std::move(ends.first);
  run->deadline_ns_ = deadline_ns;
  return run;
}

ToolRun::~ToolRun() {
  // A tool may have children. It leads a session, so kill its process group.
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (poll(&ended, 1, 0) == 0) kill(-pid_, SIGKILL);
}

bool ToolRun::read_output() {
  std::array<char, 16384> buffer;
  for (;;) {
    const ssize_t count = read(output_fd_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0;
    const std::size_t remaining = kMaxOutputBytes - output_.size();
    const auto bytes = static_cast<std::size_t>(count);
    output_.append(buffer.data(), std::min(remaining, bytes));
    output_was_cut_ |= bytes > remaining;
  }
}

bool ToolRun::advance(std::uint64_t now_ns) {
  const bool is_closed = read_output();
  pollfd ended{pidfd_.get(), POLLIN, 0};
  const bool has_ended = poll(&ended, 1, 0) == 1;
  // The tool may have written its last output between the two checks.
  if (has_ended && !is_closed) read_output();
  if (has_ended || now_ns < deadline_ns_) return has_ended;
  if (!was_late_) {
    was_late_ = true;
    syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGTERM, nullptr, 0);
  } else if (!was_killed_ && now_ns >= deadline_ns_ + kTermToKillNs) {
    was_killed_ = true;
    syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  }
  // SIGKILL does not terminate a tool whose tracee is in uninterruptible sleep; it is left behind.
  return now_ns >= deadline_ns_ + 2 * kTermToKillNs;
}

}  // namespace ivy
