#include "agent/daemon/open_call.h"

#include <unistd.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <ctime>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/user_places.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{100};
// The description is recorded and listed for as long as the job lives.
constexpr std::size_t kMaxDescriptionBytes = 64u << 10;

}  // namespace

OpenCall::OpenCall(std::shared_ptr<OpenContext> context, std::shared_ptr<OpenStream> stream,
                   AgentPeer peer)
    : context_(std::move(context)),
      stream_(std::move(stream)),
      peer_(std::move(peer)),
      timer_(context_->loop()) {}

void OpenCall::begin() {
  stream_->hand_to(shared_from_this());
  stream_->read();
  timer_.expires_after(kFirstMessageWithin);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    const bool is_waiting = self->job_.job_id().empty();
    if (!error && is_waiting)
      self->refuse({Code::kDeadlineExceeded, "no job was named on this stream"});
  });
}

void OpenCall::on_read(bool ok) {
  timer_.cancel();
  if (!ok || !stream_->request().has_open())
    return refuse({Code::kInvalidArgument, "the first message names no job"});
  job_ = std::move(*stream_->request().mutable_open());
  const Result<void> checked = check();
  if (!checked.ok()) return refuse(checked.error());
  stream_->request().Clear();
  deadline_ = steady_now() + kConnectWithin;
  try_open();
}

void OpenCall::on_cancelled() { refuse({Code::kCancelled, "the stream is broken"}); }

Result<void> OpenCall::check() const {
  if (!is_job_id(job_.job_id()))
    return Error{Code::kInvalidArgument, "a job's id is 32 lower-case hexadecimal digits"};
  // A launcher of version 0.1.0 means another host's job here. It dials that host after this
  // answer.
  if (!job_.target().empty())
    return Error{Code::kFailedPrecondition, "this agent does not carry streams on to other agents"};
  if (!job_.reattach() && !is_bundle_name(job_.bundle()))
    return Error{Code::kInvalidArgument, "a bundle's name is 24 to 64 hexadecimal digits"};
  if (job_.job().ByteSizeLong() > kMaxDescriptionBytes)
    return Error{Code::kInvalidArgument, "the description of the job is above 64 KiB"};
  return {};
}

void OpenCall::try_open() {
  if (context_->is_stopping()) return refuse({Code::kUnavailable, "the agent is ending"});
  const JobRecord* known = context_->registry().find(key());
  // This also reaches a job that another carrier has started.
  const Result<int> socket = connect_to_job(key());
  OpenFacts facts;
  facts.reattach = job_.reattach();
  facts.lives = known != nullptr || socket.ok();
  facts.same_description = known == nullptr || known->description == job_.job().SerializeAsString();
  facts.has_ended = context_->registry().has_ended_here(key());
  facts.draining = context_->is_draining();
  facts.has_bundle = !facts.lives && !facts.reattach &&
                     context_->bundles().find(job_.bundle(), context_->architecture()).ok();
  const Result<OpenStep> step = decide_open(facts);
  if (!step.ok()) {
    if (socket.ok()) Descriptor(*socket).reset();
    return refuse(step.error());
  }
  if (*step == OpenStep::kNeedBundle) return need_bundle();
  if (*step == OpenStep::kAttach && socket.ok())
    return context_->carry(key(), *socket, std::exchange(stream_, nullptr), true);
  if (*step == OpenStep::kAttach) return try_again();
  const Result<void> started = start();
  if (!started.ok()) refuse(started.error());
}

void OpenCall::try_again() {
  if (steady_now() >= deadline_) {
    return refuse({Code::kUnavailable, "the job's supervisor on this host does not listen"});
  }
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->stream_) self->try_open();
  });
}

Result<void> OpenCall::start() {
  JobRegistry& registry = context_->registry();
  const JobRecord record{.job_id = job_.job_id(),
                         .host = job_.host(),
                         .opened_at = static_cast<std::int64_t>(std::time(nullptr)),
                         .boot_id = JobRegistry::boot_id(),
                         .certificate = peer_.certificate(),
                         .from = peer_.address,
                         .description = job_.job().SerializeAsString()};
  const std::string directory =
      IVY_TRY(context_->bundles().find(job_.bundle(), context_->architecture()));
  IVY_CHECK(registry.add(record));
  const WardenRequest request{.directory = directory,
                              .key = key(),
                              .cgroup = context_->jobs_cgroup(),
                              .record = registry.warden_record(key()),
                              .environment = context_->jobs_environment()};
  const Result<StartedWarden> warden = start_warden(request);
  if (!warden.ok()) {
    registry.forget(key());
    return warden.error();
  }
  registry.started(key(), warden->pid, warden->pidfd);
  context_->status_changed();
  context_->carry(key(), warden->carrier, std::exchange(stream_, nullptr), false);
  return {};
}

void OpenCall::need_bundle() {
  stream_->add_trailer("ivy-need", context_->architecture());
  refuse({Code::kFailedPrecondition,
          "bundle " + job_.bundle() + "-" + context_->architecture() + " is not on this host"});
}

void OpenCall::refuse(const Error& error) {
  timer_.cancel();
  // The call of finish() releases us.
  const std::shared_ptr<OpenCall> self = shared_from_this();
  if (stream_) std::exchange(stream_, nullptr)->finish(grpc_status(error));
}

}  // namespace ivy
