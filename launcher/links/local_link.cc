#include "launcher/links/local_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "launcher/links/remote_entry.h"

namespace ivy {

LocalLink::LocalLink(boost::asio::io_context& loop, NodeProgram node, Handlers handlers)
    : node_(std::move(node)), reports_(std::move(handlers)), sequence_(loop) {}

LocalLink::~LocalLink() { close(); }

void LocalLink::open(const OpenRequest& request) {
  sequence_.start(begin(request.reattach ? start_relay() : start_warden(request), request));
}

// The owner is not told from inside open().
Awaitable<void> LocalLink::begin(Result<void> started, OpenRequest request) {
  if (!started.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, started.error()));
  start_pump();
  if (request.reattach) pump_->write(opening_line(request));
  reports_.up(LinkUp{});
}

Result<Descriptor> LocalLink::make_pump() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_error(Code::kResourceExhausted, "socket pair for the supervisor", errno);
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  pump_ = std::make_shared<DescriptorPump>(sequence_.loop(), ends[0], ends[0]);
  return Descriptor(ends[1]);
}

Result<void> LocalLink::start_warden(const OpenRequest& request) {
  const Descriptor far_end = IVY_TRY(make_pump());
  ChildRequest child;
  child.third_fd = far_end.get();
  child.arguments = {
      node_.path,     "warden", "--job",     request.job_id, "--host", std::to_string(request.host),
      "--carrier-fd", "3",      "--carrier", "local"};
  child.in_copy = node_.warden;
  return start(child);
}

Result<void> LocalLink::start_relay() {
  const Descriptor far_end = IVY_TRY(make_pump());
  ChildRequest child;
  child.stdin_fd = far_end.get();
  child.stdout_fd = child.stdin_fd;
  child.arguments = {node_.path, "relay"};
  return start(child);
}

Result<void> LocalLink::start(const ChildRequest& child) {
  auto started = ChildProcess::start(sequence_.loop(), child);
  if (!started) {
    Error error = started.error();
    if (error.code == Code::kNotFound || error.code == Code::kPermissionDenied) {
      error.fix = "install ivyrun again: ivy-node must lie beside ivyrun, executable";
    }
    return error;
  }
  warden_ = std::move(started).value();
  return {};
}

void LocalLink::start_pump() {
  DescriptorPump::Handlers handlers;
  handlers.bytes = [this](std::string_view bytes) { take(bytes); };
  handlers.drained = [this] { reports_.drained(); };
  handlers.ended = [this](const std::string& why) { fail(broken(why)); };
  pump_->start(std::move(handlers));
}

void LocalLink::take(std::string_view bytes) {
  if (greeting_.is_past()) return reports_.bytes(bytes);
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    if (event.kind == GreetingEvent::Kind::kFail) return fail(relay_failure(event.text));
    reports_.bytes(event.text);
  }
}

void LocalLink::write(std::string bytes) { pump_->write(bytes); }

void LocalLink::close() {
  reports_.close();
  sequence_.stop();
  if (pump_) pump_->stop();
}

void LocalLink::fail(const LinkDown& down) {
  sequence_.stop();
  if (pump_) pump_->stop();
  reports_.down(down);
}

LinkDown LocalLink::broken(const std::string& why) {
  LinkDown down;
  down.failure = LinkFailure::kBroken;
  down.message = "the supervisor on this host ended (" + why;
  if (const auto& status = warden_->ended(); status && !status->success()) {
    down.message += "; its warden: " + describe(*status);
  }
  down.message += ")";
  return down;
}

}  // namespace ivy
