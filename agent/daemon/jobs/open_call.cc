// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/open_call.h"

#include <unistd.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <ctime>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/process.h"
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
      self->refuse({Code::kDeadlineExceeded, "no job was specified on this stream"});
  });
}

void OpenCall::on_read(bool ok) {
  timer_.cancel();
  if (!ok || !stream_->request().has_open())
    return refuse({Code::kInvalidArgument, "the first message does not identify a job"});
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
    return Error{Code::kFailedPrecondition, "this agent does not forward streams to other agents"};
  if (!job_.reattach() && !is_bundle_name(job_.bundle()))
    return Error{Code::kInvalidArgument, "a bundle's name is 24 to 64 hexadecimal digits"};
  if (job_.job().ByteSizeLong() > kMaxDescriptionBytes)
    return Error{Code::kInvalidArgument, "the description of the job is above 64 KiB"};
  return {};
}

void OpenCall::try_open() {
  if (context_->is_stopping()) return refuse({Code::kUnavailable, "the agent is shutting down"});
  // Jobs' directories are local. This also reaches a job that another transport has started.
  if (const Result<int> socket = connect_to_job(key()); socket.ok()) socket_.reset(*socket);
  if (socket_ || job_.reattach() || context_->registry().find(key())) return decide("");
  find_bundle();
}

void OpenCall::find_bundle() {
  const std::string name = "the file system of " + context_->bundles().best_place();
  if (context_->files().stuck_threads() >= kMaxStuck) return say_waiting(name);
  expect_files(name);
  const auto find = [bundles = context_->bundles(), bundle = job_.bundle(),
                     architecture = context_->architecture()]() -> Result<std::string> {
    Result<std::string> here = bundles.find(bundle, architecture);
    return here.ok() ? std::move(here) : std::string();
  };
  context_->files().run(name, BlockingPool::kNoDeadline, find,
                        [self = shared_from_this(), name](const Result<std::string>& bundle) {
                          self->timer_.cancel();
                          if (!self->stream_) return;
                          // Too many calls wait already.
                          if (!bundle.ok()) return self->say_waiting(name);
                          self->decide(*bundle);
                        });
}

void OpenCall::decide(const std::string& bundle) {
  if (context_->is_stopping()) return refuse({Code::kUnavailable, "the agent is shutting down"});
  const JobRecord* known = context_->registry().find(key());
  OpenFacts facts;
  facts.reattach = job_.reattach();
  facts.lives = known != nullptr || socket_;
  facts.same_description = known == nullptr || known->description == job_.job().SerializeAsString();
  facts.has_ended = context_->registry().has_ended_here(key());
  facts.draining = context_->is_draining();
  facts.has_bundle = !bundle.empty();
  const Result<OpenStep> step = decide_open(facts);
  if (!step.ok()) return refuse(step.error());
  if (*step == OpenStep::kNeedBundle) return need_bundle();
  if (*step == OpenStep::kAttach && socket_)
    return context_->carry(key(), socket_.release(), std::exchange(stream_, nullptr), true);
  if (*step == OpenStep::kAttach) return try_again();
  start(bundle);
}

void OpenCall::try_again() {
  if (steady_now() >= deadline_) {
    // An earlier call has not finished starting it.
    if (context_->registry().is_starting(key()))
      return say_waiting("the file system of " + context_->bundles().best_place());
    return refuse({Code::kUnavailable, "the job's supervisor on this host is not listening"});
  }
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->stream_) self->try_open();
  });
}

void OpenCall::start(const std::string& directory) {
  const JobRecord record{.job_id = job_.job_id(),
                         .host = job_.host(),
                         .opened_at = static_cast<std::int64_t>(std::time(nullptr)),
                         .machine = own_host_name(),
                         .boot_id = JobRegistry::boot_id(),
                         .certificate = peer_.certificate(),
                         .from = peer_.address,
                         .description = job_.job().SerializeAsString()};
  expect_files("the file system of " + context_->registry().directory());
  context_->registry().add(
      record, [self = shared_from_this(), directory](const Result<void>& written) {
        self->timer_.cancel();
        if (!written.ok()) return self->refuse(written.error());
        // The launcher has gone, or asks again: nothing runs yet.
        if (!self->stream_ || self->context_->is_stopping()) {
          self->context_->registry().forget(self->key());
          return self->refuse({Code::kUnavailable, "the agent is shutting down"});
        }
        self->spawn(directory);
      });
}

void OpenCall::spawn(const std::string& directory) {
  const WardenRequest request{.directory = directory,
                              .key = key(),
                              .cgroup = context_->jobs_cgroup(),
                              .record = context_->registry().warden_record(key()),
                              .environment = context_->jobs_environment()};
  const std::string name = "the file system of " + directory;
  expect_files(name);
  context_->files().run(
      name, BlockingPool::kNoDeadline, [request] { return start_warden(request); },
      [self = shared_from_this()](Result<StartedWarden> warden) {
        self->on_started(std::move(warden));
      });
}

void OpenCall::on_started(Result<StartedWarden> warden) {
  timer_.cancel();
  if (!warden.ok()) {
    context_->registry().forget(key());
    return refuse(warden.error());
  }
  context_->registry().started(key(), warden->pid, warden->pidfd.release());
  context_->status_changed();
  // Without a stream the launcher asks again and attaches. If it does not, the supervisor ends like
  // any other that has lost its transport.
  if (!stream_ || context_->is_stopping())
    return refuse({Code::kUnavailable, "the agent is shutting down"});
  context_->carry(key(), warden->transport.release(), std::exchange(stream_, nullptr), false);
}

// Answers the call if this file system has not by then; what was asked of it goes on.
void OpenCall::expect_files(const std::string& name) {
  timer_.expires_after(kFilesWithin);
  timer_.async_wait([self = shared_from_this(), name](const error_code& error) {
    if (!error) self->say_waiting(name);
  });
}

void OpenCall::say_waiting(const std::string& name) {
  if (!stream_) return;
  stream_->add_trailer("ivy-wait", name);
  refuse({Code::kUnavailable, "the agent is waiting for " + name});
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
