// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/srun/dial_back_link.h"

#include <utility>

namespace ivy {

DialBackLink::DialBackLink(boost::asio::io_context& loop, std::shared_ptr<DialBackHosts> hosts,
                           std::string host, HostLinkEvents& owner)
    : SequencedLink(loop, owner), hosts_(std::move(hosts)), host_(std::move(host)) {}

DialBackLink::~DialBackLink() { close(); }

void DialBackLink::open(const OpenRequest& request) {
  request_ = request;
  hosts_->wait_for(request, host_, *this);
}

// The host has made a new connection, which StepHosts keeps until a link waits for it.
Awaitable<void> DialBackLink::end_replaced_link() {
  fail(LinkDown{LinkFailure::kBroken, host_ + " reconnected: it received nothing from ivyrun", ""});
  co_return;
}

void DialBackLink::host_connected(std::shared_ptr<DialBackStream> stream) {
  stream_ = std::move(stream);
  stream_->write(opening_line(request_));
  LinkUp up;
  up.transport = hosts_->transport();
  up.peer_address = stream_->peer_address();
  up.local_address = stream_->local_address();
  up.remote_command = hosts_->command_text();
  up.listening = hosts_->listening_text();
  reports_.up(up);
  if (reports_.is_open()) stream_->start(*this);
}

void DialBackLink::write(std::string bytes) {
  drained_due_ = true;
  stream_->write(bytes);
}

void DialBackLink::release() {
  sequence_.stop();
  hosts_->leave(request_.host, *this);
  if (stream_) stream_->stop();
}

}  // namespace ivy
