// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include "launcher/ctl/ctl_follow.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/job/control/job_record.h"
#include "launcher/screen/rank_file_set.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

Error nothing_is_kept() {
  return Error{Code::kFailedPrecondition,
               "this job keeps no logs here (started without --log-dir, or with --log-to node)",
               "ivyctl logs -f shows new output"};
}

// Returns the log files' description from the record of a job whose launcher has exited.
Result<ctl::JobDescription> recorded_description(const LauncherDirectory& directory) {
  const ctl::JobRecord record = IVY_TRY(read_job_record(directory.record()));
  const Options options = recorded_options(record.options());
  ctl::JobDescription job;
  job.set_job_id(record.job_id());
  job.set_generation(record.generation());
  const JobPlan plan = recorded_plan(record);
  job.set_world_size(static_cast<std::uint32_t>(plan.world_size));
  describe_hosts(plan, job);
  if (!options.log_dir.empty() && options.log_to != LogLocation::kNode) {
    const std::string folder = log_folder(options.log_dir, record.job_id(), record.generation());
    job.set_log_directory(folder.starts_with('/') ? folder : record.started_in() + "/" + folder);
  }
  ctl_note("the launcher of job " + short_id(record.job_id()) +
           " has exited; showing what it had written");
  return job;
}

// Shows the files that a finished job has left. Returns std::nullopt if no such job is recorded.
std::optional<Result<Followed>> show_ended_logs(const CtlOptions& options) {
  const std::optional<EndedJob> ended = find_ended_job(options.job);
  FollowRequest request;
  if (!ended || !request.job.ParseFromString(ended->description)) return std::nullopt;
  ctl_note(ended_text(*ended));
  if (request.job.log_directory().empty()) return nothing_is_kept();
  request.options = &options;
  return follow_job(std::move(request));
}

Result<Followed> show_logs(const CtlOptions& options) {
  if (!choose_job(options.job).ok())
    if (auto exit_code = show_ended_logs(options)) return *std::move(exit_code);
  if (!options.follow) {
    const FoundJob job = IVY_TRY(choose_job(options.job));
    FollowRequest request;
    request.options = &options;
    request.job =
        IVY_TRY(job.is_alive ? describe_job(job.directory) : recorded_description(job.directory));
    if (request.job.log_directory().empty()) return nothing_is_kept();
    return follow_job(std::move(request));
  }
  const FoundJob job = IVY_TRY(choose_running_job(options.job));
  FollowRequest request =
      IVY_TRY(start_following(options, job.directory, /*shows_messages=*/false));
  if (request.job.log_directory().empty())
    ctl_note("earlier output is not kept (no --log-dir); showing output from now on");
  return follow_job(std::move(request));
}

}  // namespace

int ctl_logs(const CtlOptions& options) {
  const Result<Followed> followed = show_logs(options);
  if (!followed.ok()) return ctl_fail(followed.error());
  switch (followed->how) {
    case FollowEnd::kShown:
    case FollowEnd::kJobEnded:
      return 0;
    case FollowEnd::kInterrupted:
      return 130;
    case FollowEnd::kOutputClosed:
      return kExitOutputClosed;
    case FollowEnd::kNoFiles:
    case FollowEnd::kNoAnswer:
      return ctl_fail({Code::kUnavailable, followed->error, {}});
    case FollowEnd::kLauncherLost:
      return ctl_fail({Code::kUnavailable, "the job's ivyrun closed the connection", {}});
  }
  return kCtlFailed;
}

}  // namespace ivy
