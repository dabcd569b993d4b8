#include "launcher/ctl_connection.h"
#include "launcher/ctl_verbs.h"

namespace ivy {
namespace {

std::string how_it_ended(const ctl::JobEnd& end) {
  std::string text = end.cause().empty() ? "every rank ended well" : end.cause();
  return text + " (exit code " + std::to_string(end.exit_code()) + ")";
}

// Interrupting ivyctl does not take the stop back.
Result<void> stop_job(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_living_job(options.job));
  const std::string id = short_id(job.place.job_id);
  ctl::Request request;
  ctl::StopJob& stop = *request.mutable_stop();
  stop.set_now(options.now);
  if (options.grace) {
    stop.set_has_grace(true);
    stop.set_grace_ms(static_cast<std::uint32_t>(options.grace->count()));
  }
  CtlConnection connection = IVY_TRY(CtlConnection::ask(job.place, request));
  std::optional<std::chrono::milliseconds> patience = CtlConnection::kPatience;
  for (;;) {
    const ctl::Reply reply = IVY_TRY(connection.receive(patience));
    // It is stopping now: as long as it takes.
    patience.reset();
    if (!reply.has_end()) continue;
    ctl_say("job " + id + " has ended: " + how_it_ended(reply.end()));
    return {};
  }
}

}  // namespace

int ctl_stop(const CtlOptions& options) {
  const Result<void> stopped = stop_job(options);
  if (stopped.ok()) return 0;
  ctl_complain(stopped.error());
  return kCtlFailed;
}

}  // namespace ivy
