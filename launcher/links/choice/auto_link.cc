// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/choice/auto_link.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "proto/contract/log.h"

namespace ivy {

bool agent_may_be_passed_over(const LinkDown& down) {
  switch (down.failure) {
    case LinkFailure::kUnresolved:
    case LinkFailure::kUnreachable:
    case LinkFailure::kRefused:
    case LinkFailure::kAuthentication:
    case LinkFailure::kBroken:
    case LinkFailure::kHostKey:
      return true;
    // An agent that drains, or has no capacity left, has answered: SSH does not bypass it.
    case LinkFailure::kBootstrap:
    case LinkFailure::kStaging:
    case LinkFailure::kNoSuchJob:
      return false;
  }
  return false;
}

namespace {

std::string name_of(Transport transport) {
  return transport == Transport::kAgent ? "its agent" : "ssh";
}

}  // namespace

AutoLink::AutoLink(std::shared_ptr<TransportContext> context, Host host,
                   std::vector<Transport> transports, HostLinkEvents& owner)
    : context_(std::move(context)),
      host_(std::move(host)),
      transports_(std::move(transports)),
      owner_(owner) {}

AutoLink::~AutoLink() { close(); }

void AutoLink::open(const OpenRequest& request) {
  request_ = request;
  try_transport();
}

void AutoLink::try_transport() {
  link_ = make_link_by(transports_[current_]);
  link_->open(request_);
}

void AutoLink::link_up(HostLink&, const LinkUp& up) {
  is_up_ = true;
  context_->remember_transport(host_, transports_[current_]);
  if (!note_.empty()) context_->note("no agent", "note: " + std::exchange(note_, {}));
  owner_.link_up(*this, up);
}

void AutoLink::link_down(HostLink&, const LinkDown& down) {
  const bool is_last = current_ + 1 == transports_.size();
  if (is_up_ || is_last || !agent_may_be_passed_over(down)) {
    LinkDown all = down;
    if (!is_up_) all.message += earlier_reasons(down.message);
    return owner_.link_down(*this, all);
  }
  const Transport failed = transports_[current_++];
  const Transport next = transports_[current_];
  const RemoteText line = host_.name + ": " + name_of(next) + " is used: " + down.message;
  log::debug(line.line());
  // A user who has configured agents should know if a host is reached without one. The note is
  // printed once a link is up. If there is none, the failure contains all reasons.
  if (next != failed) note_ = line;
  failed_before_.emplace_back(name_of(failed), down.message);
  // In a later turn: a link must not be destroyed inside one of its own events.
  const std::shared_ptr<HostLink> old = std::move(link_);
  boost::asio::post(context_->loop(), [old] {});
  try_transport();
}

// Returns the failures of the earlier transports that differ from `last`. A name without an
// address, for example, is reported only once.
RemoteText AutoLink::earlier_reasons(const RemoteText& last) const {
  RemoteText text;
  for (const auto& [name, message] : failed_before_) {
    if (!(message == last)) text += " (" + name + ": " + message + ")";
  }
  return text;
}

void AutoLink::write(std::string bytes) {
  if (link_) link_->write(std::move(bytes));
}

void AutoLink::close() {
  if (link_) link_->close();
}

}  // namespace ivy
