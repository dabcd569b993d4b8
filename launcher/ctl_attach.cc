#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "launcher/ctl_follow.h"
#include "launcher/ctl_verbs.h"
#include "proto/exit_code.h"

extern char** environ;

namespace ivy {
namespace {

std::string ivyrun_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  const std::string program(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1) + "ivyrun";
}

// Starts a new launcher, which returns when it has taken the job over and gone into the background,
// or with the job's exit code where the job had ended meanwhile.
Result<int> start_launcher(const JobPlace& place) {
  std::string program = ivyrun_path();
  std::string flag = "--resume";
  std::string record = place.record();
  char* const arguments[] = {program.data(), flag.data(), record.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Its notice is about what the user has just asked for.
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  // A Ctrl-C while it takes over leaves the job alone, too: it is no member of our group.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return errno_error(Code::kNotFound, "start " + program, error);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The job has ended under its new launcher before we could follow it.
struct AttachedTooLate {
  int exit_code = 0;
};

Result<std::optional<AttachedTooLate>> revive(FoundJob& job) {
  if (job.is_alive) return std::optional<AttachedTooLate>();
  ctl_say("the launcher of job " + short_id(job.place.job_id) + " is dead; starting another");
  const int code = IVY_TRY(start_launcher(job.place));
  for (const FoundJob& found : find_job_places())
    if (found.place.job_id == job.place.job_id && found.is_alive) {
      job = found;
      return std::optional<AttachedTooLate>();
    }
  return std::optional<AttachedTooLate>(AttachedTooLate{code});
}

Result<Followed> attach(const CtlOptions& options, std::string& id) {
  FoundJob job = IVY_TRY(choose_job(options.job));
  id = short_id(job.place.job_id);
  if (const auto late = IVY_TRY(revive(job))) {
    Followed followed;
    followed.how = FollowEnd::kJobEnded;
    followed.end.set_exit_code(late->exit_code);
    return followed;
  }
  FollowRequest request = IVY_TRY(begin_to_follow(options, job.place));
  request.last_lines = options.tail_lines;
  request.shows_messages = true;
  if (request.job.log_directory().empty())
    ctl_say("earlier output is not kept on this host; this is what comes now");
  return follow_job(std::move(request));
}

}  // namespace

int ctl_attach(const CtlOptions& options) {
  std::string id;
  const Result<Followed> followed = attach(options, id);
  if (!followed.ok()) {
    ctl_complain(followed.error());
    return kCtlFailed;
  }
  switch (followed->how) {
    case FollowEnd::kJobEnded:
      return followed->end.exit_code();
    case FollowEnd::kInterrupted:
      ctl_say("left job " + id + ", which goes on; `ivyctl stop " + id + "` ends it");
      return 130;
    case FollowEnd::kOutputClosed:
      return kExitOutputClosed;
    case FollowEnd::kShown:
    case FollowEnd::kNoFiles:
    case FollowEnd::kLauncherLost:
      ctl_complain(Error{Code::kUnavailable, "the ivyrun of job " + id + " has gone away",
                         "its hosts end what is left of the job"});
      return kExitHostLost;
  }
  return kCtlFailed;
}

}  // namespace ivy
