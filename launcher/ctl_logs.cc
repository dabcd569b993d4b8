#include "launcher/ctl_follow.h"
#include "launcher/ctl_verbs.h"
#include "proto/exit_code.h"

namespace ivy {
namespace {

Error nothing_is_kept() {
  return Error{Code::kFailedPrecondition,
               "nothing is kept of what this job prints: it was started without --log-dir (or with "
               "--log-to node)",
               "ivyctl logs -f shows it from now on"};
}

Result<Followed> show_logs(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_living_job(options.job));
  if (!options.follow) {
    FollowRequest request;
    request.options = &options;
    request.job = IVY_TRY(describe_job(job.place));
    if (request.job.log_directory().empty()) return nothing_is_kept();
    return follow_job(std::move(request));
  }
  FollowRequest request = IVY_TRY(begin_to_follow(options, job.place));
  if (request.job.log_directory().empty())
    ctl_say("earlier output is not kept (no --log-dir); this is what comes now");
  return follow_job(std::move(request));
}

}  // namespace

int ctl_logs(const CtlOptions& options) {
  const Result<Followed> followed = show_logs(options);
  if (!followed.ok()) {
    ctl_complain(followed.error());
    return kCtlFailed;
  }
  switch (followed->how) {
    case FollowEnd::kShown:
    case FollowEnd::kJobEnded:
      return 0;
    case FollowEnd::kInterrupted:
      return 130;
    case FollowEnd::kOutputClosed:
      return kExitOutputClosed;
    case FollowEnd::kNoFiles:
      ctl_complain(Error{Code::kUnavailable, followed->trouble, {}});
      return kCtlFailed;
    case FollowEnd::kLauncherLost:
      ctl_complain(Error{Code::kUnavailable, "the job's ivyrun has gone away", {}});
      return kCtlFailed;
  }
  return kCtlFailed;
}

}  // namespace ivy
