#include "launcher/links/local_link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>

#include "launcher/links/remote_entry.h"

namespace ivy {
namespace {

LinkDown cannot_start(const Error& error) {
  LinkDown down;
  down.failure = LinkFailure::kBootstrap;
  down.message = error.message;
  down.fix = error.fix;
  return down;
}

}  // namespace

LocalLink::LocalLink(boost::asio::io_context& loop, std::string node_binary, Handlers handlers)
    : loop_(loop), node_binary_(std::move(node_binary)), handlers_(std::move(handlers)) {}

LocalLink::~LocalLink() { close(); }

void LocalLink::open(const OpenRequest& request) {
  const Result<void> started = request.reattach ? start_relay() : start_warden(request);
  if (!started) {
    const LinkDown down = cannot_start(started.error());
    post([this, down] { handlers_.down(down); });
    return;
  }
  post([this, request] {
    start_pump();
    if (request.reattach) pump_->write(opening_line(request));
    handlers_.up(LinkUp{});
  });
}

Result<int> LocalLink::make_pump() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_error(Code::kResourceExhausted, "socket pair for the supervisor", errno);
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  pump_ = std::make_shared<DescriptorPump>(loop_, ends[0], ends[0]);
  return ends[1];
}

Result<void> LocalLink::start_warden(const OpenRequest& request) {
  ChildRequest child;
  child.third_fd = IVY_TRY(make_pump());
  child.arguments = {
      node_binary_,   "warden", "--job",     request.job_id, "--host", std::to_string(request.host),
      "--carrier-fd", "3",      "--carrier", "local"};
  const Result<void> started = start(child);
  ::close(child.third_fd);
  return started;
}

Result<void> LocalLink::start_relay() {
  ChildRequest child;
  child.stdin_fd = IVY_TRY(make_pump());
  child.stdout_fd = child.stdin_fd;
  child.arguments = {node_binary_, "relay"};
  const Result<void> started = start(child);
  ::close(child.stdin_fd);
  return started;
}

Result<void> LocalLink::start(const ChildRequest& child) {
  auto started = ChildProcess::start(loop_, child);
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
  handlers.drained = [this] { handlers_.drained(); };
  handlers.ended = [this](const std::string& why) { handlers_.down(broken(why)); };
  pump_->start(std::move(handlers));
}

void LocalLink::take(std::string_view bytes) {
  if (greeting_.is_past()) return handlers_.bytes(bytes);
  const std::shared_ptr<bool> alive = alive_;
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    if (event.kind == GreetingEvent::Kind::kFail) {
      pump_->stop();
      return handlers_.down(relay_failure(event.text));
    }
    handlers_.bytes(event.text);
    if (!*alive) return;
  }
}

void LocalLink::write(std::string bytes) { pump_->write(bytes); }

void LocalLink::close() {
  *alive_ = false;
  if (pump_) pump_->stop();
}

void LocalLink::post(std::function<void()> action) {
  boost::asio::post(loop_, [alive = alive_, action = std::move(action)] {
    if (*alive) action();
  });
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
