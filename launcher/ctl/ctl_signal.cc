#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_verbs.h"

namespace ivy {
namespace {

Result<void> send_signal(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_living_job(options.job));
  ctl::Request request;
  request.mutable_signal()->set_signal(options.signal);
  CtlConnection connection = IVY_TRY(CtlConnection::ask(job.place, request));
  IVY_CHECK(connection.receive());
  return {};
}

}  // namespace

int ctl_signal(const CtlOptions& options) {
  const Result<void> sent = send_signal(options);
  if (sent.ok()) return 0;
  ctl_complain(sent.error());
  return kCtlFailed;
}

}  // namespace ivy
