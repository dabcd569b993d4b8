#include "launcher/ctl_follow.h"
#include "launcher/ctl_verbs.h"
#include "proto/exit_code.h"

namespace ivy {
namespace {

Result<Followed> attach(const CtlOptions& options, std::string& id) {
  const FoundJob job = IVY_TRY(choose_job(options.job));
  id = short_id(job.place.job_id);
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
