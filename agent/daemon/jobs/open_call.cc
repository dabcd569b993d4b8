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
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{100};
// The description is recorded and listed for as long as the job lives.
constexpr std::size_t kMaxDescriptionBytes = 64u << 10;

}  // namespace

Result<OpenAction> choose_open_action(const OpenFacts& facts) {
  if (facts.reattach) {
    if (facts.runs) return OpenAction::kAttach;
    return Error{Code::kNotFound, "no such job runs on this host"};
  }
  if (facts.runs) {
    if (facts.same_description) return OpenAction::kAttach;
    return Error{Code::kAlreadyExists, "another job with this id runs on this host"};
  }
  if (facts.has_ended)
    return Error{Code::kAlreadyExists,
                 "this job has already ended on this host, and cannot be started again"};
  if (facts.draining)
    return Error{Code::kUnavailable, "this agent is draining and accepts no new jobs",
                 "leave out this host, or run `ivy-agent drain --undo` on it"};
  return facts.has_bundle ? OpenAction::kStart : OpenAction::kRequestBundle;
}

OpenCall::OpenCall(std::shared_ptr<AgentCore> core, std::shared_ptr<OpenStream> stream,
                   Caller caller)
    : core_(std::move(core)),
      stream_(std::move(stream)),
      caller_(std::move(caller)),
      timer_(core_->loop()) {}

void OpenCall::begin() {
  stream_->hand_to(shared_from_this());
  stream_->read();
  timer_.expires_after(kFirstMessageWithin);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    const bool is_waiting = self->job_.job_id().empty();
    if (!error && is_waiting)
      self->reject({Code::kDeadlineExceeded, "no job was specified on this stream"});
  });
}

void OpenCall::on_read(bool ok) {
  timer_.cancel();
  if (!ok || !stream_->request().has_open())
    return reject({Code::kInvalidArgument, "the first message does not identify a job"});
  job_ = std::move(*stream_->request().mutable_open());
  const Result<void> checked = check();
  if (!checked.ok()) return reject(checked.error());
  stream_->request().Clear();
  deadline_ = steady_now() + kConnectWithin;
  try_open();
}

void OpenCall::on_cancelled() { reject({Code::kCancelled, "the stream is broken"}); }

Result<void> OpenCall::check() const {
  if (!is_job_id(job_.job_id()))
    return Error{Code::kInvalidArgument, "a job's id is 32 lower-case hexadecimal digits"};
  // Only a launcher of version 0.1.0 sends this, for the job of another host; after this answer it
  // dials that host.
  if (!job_.target().empty())
    return Error{Code::kFailedPrecondition, "this agent does not forward streams to other agents"};
  if (!job_.reattach() && !is_bundle_name(job_.bundle()))
    return Error{Code::kInvalidArgument, "a bundle's name is 24 to 64 hexadecimal digits"};
  if (job_.job().ByteSizeLong() > kMaxDescriptionBytes)
    return Error{Code::kInvalidArgument, "the description of the job is above 64 KiB"};
  return {};
}

void OpenCall::try_open() {
  if (core_->is_stopping()) return reject({Code::kUnavailable, "the agent is shutting down"});
  // Does not block, because jobs' directories are local. Also reaches a job that was started over
  // another transport.
  if (const Result<int> socket = connect_to_job(key()); socket.ok()) socket_.reset(*socket);
  if (socket_ || job_.reattach() || core_->registry().find(key())) return act("");
  find_bundle();
}

void OpenCall::find_bundle() {
  const std::string name = "the file system of " + core_->bundles().first_directory();
  if (core_->files().stuck_threads() >= kMaxStuck) return reject_waiting(name);
  limit_wait(name);
  const auto find = [bundles = core_->bundles(), bundle = job_.bundle(),
                     architecture = core_->architecture()]() -> Result<std::string> {
    Result<std::string> here = bundles.find(bundle, architecture);
    return here.ok() ? std::move(here) : std::string();
  };
  core_->files().run(name, BlockingPool::kNoDeadline, find,
                     [self = shared_from_this(), name](const Result<std::string>& bundle) {
                       self->timer_.cancel();
                       if (!self->stream_) return;
                       // Too many calls are waiting already.
                       if (!bundle.ok()) return self->reject_waiting(name);
                       self->act(*bundle);
                     });
}

void OpenCall::act(const std::string& bundle) {
  if (core_->is_stopping()) return reject({Code::kUnavailable, "the agent is shutting down"});
  const JobRecord* known = core_->registry().find(key());
  OpenFacts facts;
  facts.reattach = job_.reattach();
  facts.runs = known != nullptr || socket_;
  facts.same_description = known == nullptr || known->description == job_.job().SerializeAsString();
  facts.has_ended = core_->registry().has_ended_here(key());
  facts.draining = core_->is_draining();
  facts.has_bundle = !bundle.empty();
  const Result<OpenAction> action = choose_open_action(facts);
  if (!action.ok()) return reject(action.error());
  if (*action == OpenAction::kRequestBundle) return request_bundle();
  if (*action == OpenAction::kAttach && socket_)
    return core_->carry(key(), socket_.release(), std::exchange(stream_, nullptr), true);
  if (*action == OpenAction::kAttach) return retry();
  record(bundle);
}

void OpenCall::retry() {
  if (steady_now() >= deadline_) {
    // An earlier call has not finished starting it.
    if (core_->registry().is_starting(key()))
      return reject_waiting("the file system of " + core_->bundles().first_directory());
    return reject({Code::kUnavailable, "the job's supervisor on this host is not listening"});
  }
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->stream_) self->try_open();
  });
}

void OpenCall::record(const std::string& bundle) {
  const JobRecord entry{.job_id = job_.job_id(),
                        .host = job_.host(),
                        .opened_at = static_cast<std::int64_t>(std::time(nullptr)),
                        .machine = own_host_name(),
                        .boot_id = JobRegistry::boot_id(),
                        .certificate = caller_.certificate(),
                        .from = caller_.address,
                        .description = job_.job().SerializeAsString()};
  limit_wait("the file system of " + core_->registry().directory());
  core_->registry().add(entry, [self = shared_from_this(), bundle](const Result<void>& written) {
    self->timer_.cancel();
    if (!written.ok()) return self->reject(written.error());
    // The launcher has disconnected or retries; nothing runs yet.
    if (!self->stream_ || self->core_->is_stopping()) {
      self->core_->registry().forget(self->key());
      return self->reject({Code::kUnavailable, "the agent is shutting down"});
    }
    self->spawn(bundle);
  });
}

void OpenCall::spawn(const std::string& bundle) {
  const WardenRequest request{.directory = bundle,
                              .key = key(),
                              .cgroup = core_->jobs_cgroup(),
                              .record = core_->registry().warden_record(key()),
                              .environment = core_->jobs_environment()};
  const std::string name = "the file system of " + bundle;
  limit_wait(name);
  core_->files().run(
      name, BlockingPool::kNoDeadline, [request] { return start_warden(request); },
      [self = shared_from_this()](Result<StartedWarden> warden) {
        self->on_started(std::move(warden));
      });
}

void OpenCall::on_started(Result<StartedWarden> warden) {
  timer_.cancel();
  if (!warden.ok()) {
    core_->registry().forget(key());
    return reject(warden.error());
  }
  core_->registry().started(key(), warden->pid, warden->pidfd.release());
  // Without a stream: the launcher retries and attaches. If it does not, the supervisor ends like
  // any other that has lost its transport.
  if (!stream_ || core_->is_stopping())
    return reject({Code::kUnavailable, "the agent is shutting down"});
  core_->carry(key(), warden->transport.release(), std::exchange(stream_, nullptr), false);
}

// Rejects the call if this file system does not answer in time; the operation continues.
void OpenCall::limit_wait(const std::string& awaited) {
  timer_.expires_after(kFilesWithin);
  timer_.async_wait([self = shared_from_this(), awaited](const error_code& error) {
    if (!error) self->reject_waiting(awaited);
  });
}

void OpenCall::reject_waiting(const std::string& awaited) {
  if (!stream_) return;
  stream_->add_trailer("ivy-wait", awaited);
  reject({Code::kUnavailable, "the agent is waiting for " + awaited});
}

void OpenCall::request_bundle() {
  stream_->add_trailer("ivy-need", core_->architecture());
  reject({Code::kFailedPrecondition,
          "bundle " + job_.bundle() + "-" + core_->architecture() + " is not on this host"});
}

void OpenCall::reject(const Error& error) {
  timer_.cancel();
  // finish() releases the stream's reference to this call.
  const std::shared_ptr<OpenCall> self = shared_from_this();
  if (stream_) std::exchange(stream_, nullptr)->finish(grpc_status(error));
}

}  // namespace ivy
