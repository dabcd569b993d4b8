// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_launcher.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "launcher/ctl/ctl_verbs.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/spawn_setup.h"

extern char** environ;

namespace ivy {
namespace {

// The kernel takes some milliseconds to free the resources of a killed process.
constexpr int kEndChecks = 40;
constexpr useconds_t kEndCheckPauseMicroseconds = 25'000;

// The notice of a job in the background has four lines.
constexpr std::size_t kMaxNoticeBytes = 64u << 10;

struct NewLauncher {
  bool took_over = false;  // It has taken the job over and continues in the background.
  int exit_code = 0;       // Otherwise the job's exit code, or the reason why the takeover failed.
};

// Starts a launcher for the job, and waits until it continues in the background or exits. Only in
// the first case does it write to standard output: a notice to the user.
Result<NewLauncher> start_launcher(const LauncherDirectory& directory) {
  std::string program = ivyrun_path();
  std::string flag = "--resume";
  std::string record = directory.record();
  char* const arguments[] = {program.data(), flag.data(), record.data(), nullptr};
  auto [reader, writer] = make_pipe();
  if (!reader) return errno_error(Code::kResourceExhausted, "pipe", errno);
  SpawnSetup setup;
  // The notice is not shown, because the user did not ask for a job in the background.
  setup.copy(writer.get(), STDOUT_FILENO);
  // A separate process group, so that a Ctrl-C during the takeover does not reach it.
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.c_str(), &setup.actions, &setup.attributes, arguments, environ);
  writer.reset();
  if (error != 0) return errno_error(Code::kNotFound, "start " + program, error);
  NewLauncher launcher;
  launcher.took_over = !read_from(reader.get(), kMaxNoticeBytes).value_or("").empty();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  launcher.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return launcher;
}

bool has_launcher(const std::string& job_id) {
  const Result<FoundJob> job = choose_job(job_id);
  return job.ok() && job->is_alive;
}

}  // namespace

std::string ivyrun_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  const std::string program(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1) + "ivyrun";
}

void await_killed_launcher(const std::string& job_id) {
  for (int checks = 0; checks < kEndChecks && has_launcher(job_id); ++checks)
    usleep(kEndCheckPauseMicroseconds);
}

Result<std::optional<int>> ensure_launcher(const FoundJob& job) {
  const std::optional<int> is_running;  // No exit code.
  if (job.is_alive) return is_running;
  const std::string id = short_id(job.directory.job_id);
  ctl_note("the launcher of job " + id + " has exited; starting another");
  const NewLauncher launcher = IVY_TRY(start_launcher(job.directory));
  if (launcher.took_over) return is_running;
  // Another attach may have been faster; follow its launcher then.
  if (has_launcher(job.directory.job_id)) {
    ctl_note("another launcher has taken job " + id + " over");
    return is_running;
  }
  return std::optional(launcher.exit_code);
}

}  // namespace ivy
