// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include "launcher/ctl/ctl_follow.h"
#include "launcher/ctl/ctl_launcher.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

// Returns the result for a job that ended before it could be followed.
Followed ended_with(int exit_code) {
  Followed followed;
  followed.how = FollowEnd::kJobEnded;
  followed.end.set_exit_code(exit_code);
  return followed;
}

Result<Followed> attach(const CtlOptions& options, std::string& id) {
  const std::string job_id = IVY_TRY(choose_job(options.job)).directory.job_id;
  id = short_id(job_id);
  std::optional<FollowRequest> follow;
  for (bool is_second_try = false; !follow; is_second_try = true) {
    const FoundJob job = IVY_TRY(choose_job(job_id));
    if (const std::optional<int> ended = IVY_TRY(ensure_launcher(job))) return ended_with(*ended);
    Result<FollowRequest> followable =
        start_following(options, job.directory, /*shows_messages=*/true);
    if (followable.ok()) {
      follow.emplace(std::move(followable).value());
    } else if (is_second_try || followable.error().code != Code::kUnavailable) {
      return followable.error();
    } else {
      await_killed_launcher(job_id);
    }
  }
  FollowRequest& request = *follow;
  request.last_lines = options.tail_lines;
  if (request.job.log_directory().empty())
    ctl_note("this host keeps no earlier output; showing output from now on");
  return follow_job(std::move(*follow));
}

}  // namespace

int ctl_attach(const CtlOptions& options) {
  std::string id;
  Result<Followed> followed = attach(options, id);
  if (!followed.ok()) {
    // A short job may end before a client can attach to it.
    if (const std::optional<EndedJob> ended = find_ended_job(id.empty() ? options.job : id)) {
      ctl_note(ended_text(*ended));
      followed = ended_with(ended->exit_code);
    }
  }
  if (!followed.ok()) return ctl_fail(followed.error());
  switch (followed->how) {
    case FollowEnd::kJobEnded:
      return followed->end.exit_code();
    case FollowEnd::kInterrupted:
      ctl_note("detached; job " + id + " keeps running (`ivyctl stop " + id + "` stops it)");
      return 130;
    case FollowEnd::kOutputClosed:
      return kExitOutputClosed;
    case FollowEnd::kNoAnswer:
      return ctl_fail(
          {Code::kDeadlineExceeded, followed->error,
           "attach again once it responds (kill -CONT if it was stopped); its hosts stop "
           "the job when the lease expires"},
          kExitHostLost);
    case FollowEnd::kShown:
    case FollowEnd::kNoFiles:
    case FollowEnd::kLauncherLost:
      return ctl_fail({Code::kUnavailable, "the ivyrun of job " + id + " closed the connection",
                       "its hosts stop the processes that are left of the job"},
                      kExitHostLost);
  }
  return kCtlFailed;
}

}  // namespace ivy
