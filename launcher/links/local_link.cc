// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/local_link.h"

#include <fcntl.h>

#include <cerrno>

#include "launcher/links/warden_copy.h"

namespace ivy {

LocalLink::LocalLink(boost::asio::io_context& loop, NodeProgram node, HostLinkEvents& owner)
    : SequencedLink(loop, owner), node_(std::move(node)) {}

LocalLink::~LocalLink() { close(); }

void LocalLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(begin(request.reattach ? start_relay() : start_warden()));
}

// A coroutine, so that the owner gets no event from within open().
Awaitable<void> LocalLink::begin(Result<void> started) {
  if (!started.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, started.error()));
  pump_->start_reading();
  if (request_.reattach) pump_->write(opening_line(request_));
  reports_.up(LinkUp{});
}

void LocalLink::make_pump(Descriptor our_end) {
  fcntl(our_end.get(), F_SETFL, O_NONBLOCK);
  const int end = our_end.release();
  pump_ = std::make_shared<DescriptorPump>(sequence_.loop(), *this, end, end);
}

Result<Descriptor> LocalLink::make_pair() {
  DescriptorPair ends = make_stream_pair();
  if (!ends) return errno_error(Code::kResourceExhausted, "socket pair for the supervisor", errno);
  make_pump(std::move(ends.first));
  return std::move(ends.second);
}

Result<void> LocalLink::start_warden() {
  const WardenOrder order{node_.path, request_.job_id, request_.host};
  if (auto copy = node_.copy ? node_.copy->take(order) : std::nullopt) {
    make_pump(std::move(copy->transport));
    warden_ = IVY_TRY(ChildProcess::adopt(sequence_.loop(), copy->pid, node_.path));
    return {};
  }
  const Descriptor far_end = IVY_TRY(make_pair());
  ChildRequest child;
  child.third_fd = far_end.get();
  child.arguments = warden_arguments(order);
  return start(child);
}

Result<void> LocalLink::start_relay() {
  const Descriptor far_end = IVY_TRY(make_pair());
  ChildRequest child;
  child.stdin_fd = far_end.get();
  child.stdout_fd = child.stdin_fd;
  child.arguments = {node_.path, "relay"};
  return start(child);
}

Result<void> LocalLink::start(ChildRequest child) {
  // Passes the whole environment on: ivy-probe loads the drivers' libraries, which LD_LIBRARY_PATH
  // may name.
  child.environment = environment_texts(environment_of(environ));
  auto started = ChildProcess::start(sequence_.loop(), child);
  if (!started) {
    Error error = started.error();
    const bool is_missing = error.code == Code::kNotFound || error.code == Code::kPermissionDenied;
    if (is_missing && error.fix.empty()) {
      error.fix = "reinstall ivyrun: ivy-node must be an executable file next to ivyrun";
    }
    return error;
  }
  warden_ = std::move(started).value();
  return {};
}

void LocalLink::write(std::string bytes) { pump_->write(bytes); }

void LocalLink::release() {
  sequence_.stop();
  if (pump_) pump_->stop();
}

LinkDown LocalLink::broken(const std::string& why) {
  LinkDown down;
  down.failure = LinkFailure::kBroken;
  down.message = "the supervisor on this host exited (" + why;
  if (const auto& status = warden_->ended(); status && !status->is_success()) {
    down.message += "; its warden: " + describe(*status);
  }
  down.message += ")";
  return down;
}

}  // namespace ivy
