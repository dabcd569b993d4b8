// SPDX-License-Identifier: Apache-2.0
// ivyctl stop: a request to a job's launcher.
#include <algorithm>
#include <utility>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_launcher.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

// Reports that a job without a launcher has ended, or fails because it is still running.
Result<void> ended_or_left(const std::string& job_id, int exit_code) {
  const std::string id = short_id(job_id);
  if (choose_job(job_id).ok())
    return Error{Code::kUnavailable,
                 "job " + id + " is still running: no launcher could take it over",
                 "try again, or wait until its hosts stop it when the lease expires"};
  ctl_note("job " + id + " has already exited (exit code " + std::to_string(exit_code) + ")");
  return {};
}

// Sends the request to the job's launcher, or to a new one if that was just killed.
Result<CtlConnection> send_to_launcher(const FoundJob& job, const ctl::Request& request) {
  Result<CtlConnection> sent = CtlConnection::send_request(job.directory, request);
  if (sent.ok() || sent.error().code != Code::kUnavailable) return sent;
  await_killed_launcher(job.directory.job_id);
  const FoundJob now = IVY_TRY(choose_job(job.directory.job_id));
  if (now.is_alive) return sent;
  if (const std::optional<int> ended = IVY_TRY(ensure_launcher(now)))
    return Error{Code::kNotFound, "job " + short_id(job.directory.job_id) + " has already exited"};
  return CtlConnection::send_request(now.directory, request);
}

// Returns true if an id of a job launched on this host starts with this prefix. If choose_job() has
// failed, there are several such jobs, and none of them is chosen for the user.
bool has_job_with_prefix(const std::string& prefix) {
  const std::vector<FoundJob> jobs = find_launcher_directories();
  return std::any_of(jobs.begin(), jobs.end(),
                     [&](const FoundJob& job) { return job.directory.job_id.starts_with(prefix); });
}

// Waits for the job's end, which takes as long as the ranks' grace period and the reader of their
// output need. The launcher must answer probes in the meantime.
Result<void> await_end(CtlConnection& connection, const LauncherDirectory& directory) {
  const std::string& job_id = directory.job_id;
  bool is_accepted = false;
  bool is_printed = false;
  for (;;) {
    const Result<ctl::Reply> reply = connection.receive();
    if (!reply.ok() && (!is_accepted || reply.error().code != Code::kDeadlineExceeded))
      return reply.error();
    if (reply.ok() && reply->has_end()) {
      ctl_note(ended_text({job_id, reply->end().exit_code(), reply->end().cause(), ""}));
      return {};
    }
    is_accepted = true;
    if (reply.ok()) continue;
    const Result<ctl::JobDescription> now = describe_job(directory);
    if (!now.ok() && now.error().code == Code::kDeadlineExceeded) return now.error();
    if (now.ok() && !std::exchange(is_printed, true))
      ctl_note("job " + short_id(job_id) + " is " + RemoteText(now->state()).line() + ", " +
               std::to_string(now->running()) + " ranks still running; waiting until it exits");
  }
}

// Interrupting ivyctl does not cancel the stop.
Result<void> stop_job(const CtlOptions& options) {
  // A job that has outlived its launcher is stopped through a new one, because hosts obey only a
  // launcher.
  const FoundJob job = IVY_TRY(choose_job(options.job));
  if (const std::optional<int> ended = IVY_TRY(ensure_launcher(job)))
    return ended_or_left(job.directory.job_id, *ended);
  ctl::Request request;
  ctl::StopJob& stop = *request.mutable_stop();
  stop.set_now(options.now);
  if (options.grace) {
    stop.set_has_grace(true);
    stop.set_grace_ms(static_cast<std::uint32_t>(options.grace->count()));
  }
  CtlConnection connection = IVY_TRY(send_to_launcher(job, request));
  return await_end(connection, job.directory);
}

}  // namespace

int ctl_stop(const CtlOptions& options) {
  if (!options.hosts.empty()) return ctl_stop_on_hosts(options);
  if (!choose_job(options.job).ok() && !has_job_with_prefix(options.job)) {
    if (const std::optional<int> done = ctl_stop_on_this_host(options)) return *done;
  }
  const Result<void> stopped = stop_job(options);
  return stopped.ok() ? 0 : ctl_fail(stopped.error());
}

}  // namespace ivy
