// SPDX-License-Identifier: Apache-2.0
// ivyctl signal: a request to a job's launcher.
#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_launcher.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"

namespace ivy {
namespace {

Result<ctl::Reply> send_signal(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_running_job(options.job));
  ctl::Request request;
  ctl::SignalJob& signal = *request.mutable_signal();
  signal.set_signal(options.signal);
  IVY_CHECK(add_ranks(options.ranks, job.directory, *signal.mutable_ranks()));
  if (!signal.ranks().empty() && !IVY_TRY(describe_job(job.directory)).signals_ranks())
    return Error{Code::kFailedPrecondition, "this job was started by an older ivyrun",
                 "use the ivyctl next to that ivyrun, or signal all ranks"};
  return request_reply(job.directory, request);
}

}  // namespace

int ctl_signal(const CtlOptions& options) {
  const Result<ctl::Reply> sent = send_signal(options);
  return sent.ok() ? 0 : ctl_fail(sent.error());
}

}  // namespace ivy
