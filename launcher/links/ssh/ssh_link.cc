#include "launcher/links/ssh/ssh_link.h"

#include <boost/asio/post.hpp>

#include "launcher/links/ssh/ssh_client_link.h"
#include "launcher/links/ssh/ssh_connection.h"
#include "launcher/links/ssh/ssh_state.h"

namespace ivy {

SshLink::SshLink(std::shared_ptr<CarrierContext> context, Host host, SshTarget target,
                 Handlers handlers, int attempt)
    : context_(std::move(context)),
      host_(std::move(host)),
      target_(std::move(target)),
      handlers_(std::move(handlers)),
      attempt_(attempt) {}

SshLink::~SshLink() { close(); }

void SshLink::open(const OpenRequest& request) {
  request_ = request;
  SshConnection::Handlers handlers;
  handlers.link = handlers_;
  handlers.give_up = [this](const std::string& because) { take_client(because); };
  connection_ = std::make_shared<SshConnection>(
      context_, host_, target_, std::move(handlers),
      attempt_ == 0 ? SshConnection::Retry::kAllowed : SshConnection::Retry::kForbidden);
  const Result<NodeUpload*> upload = SshState::of(*context_).upload();
  if (upload.ok()) return connection_->open(request, **upload);
  const LinkDown down = LinkDown::from(LinkFailure::kBootstrap, upload.error());
  boost::asio::post(context_->loop(), [this, down, alive = std::weak_ptr(connection_)] {
    if (!alive.expired()) handlers_.down(down);
  });
}

void SshLink::take_client(const std::string& because) {
  handlers_.progress("libssh could not log in to " + host_.name + " (" + because +
                     "), trying the OpenSSH client");
  if (!connection_) return;
  HostLink::Handlers handlers = handlers_;
  handlers.up = [this](const LinkUp& up) {
    SshState::of(*context_).prefer_client(host_);
    handlers_.up(up);
  };
  handlers.down = [this, because](const LinkDown& down) {
    LinkDown both = down;
    if (down.failure != LinkFailure::kBroken) both.message += " (libssh: " + because + ")";
    handlers_.down(both);
  };
  client_ = std::make_unique<SshClientLink>(context_, host_, target_, std::move(handlers));
  client_->open(request_);
}

void SshLink::write(std::string bytes) {
  if (client_) return client_->write(std::move(bytes));
  connection_->write(bytes);
}

void SshLink::close() {
  if (connection_) connection_->close();
  connection_.reset();
  if (client_) client_->close();
}

}  // namespace ivy
