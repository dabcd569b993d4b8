// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/host_links.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ivy {

void HostLinks::dial(const OpenRequest& request) {
  dialing_ = make_link_(*this, attempts_++);
  dialing_->open(request);
}

void HostLinks::link_up(HostLink& link, const LinkUp& up) {
  if (&link != dialing_.get()) return;
  // The new link is up before the old one is dropped, so the supervisor sees no gap between them.
  drop();
  link_ = std::move(dialing_);
  events_.active_link_up(up);
}

void HostLinks::link_bytes(HostLink& link, std::string_view bytes) {
  if (&link == link_.get()) events_.active_link_bytes(bytes);
}

void HostLinks::link_drained(HostLink& link) {
  if (&link != link_.get()) return;
  writes_ = false;
  events_.active_link_drained();
}

void HostLinks::link_down(HostLink& link, const LinkDown& down) {
  if (&link == link_.get()) {
    drop();
    events_.active_link_broken(down);
  } else if (&link == dialing_.get()) {
    give_up_dialing();
    events_.dial_failed(down);
  }
}

void HostLinks::write(std::string bytes) {
  writes_ = true;
  link_->write(std::move(bytes));
}

void HostLinks::drop() {
  writes_ = false;
  allow_alive(false);
  retire(std::move(link_));
}

void HostLinks::allow_alive(bool allowed) {
  const std::lock_guard lock(alive_mutex_);
  allows_alive_ = allowed;
}

void HostLinks::send_alive(std::string_view frame) {
  const std::lock_guard lock(alive_mutex_);
  if (allows_alive_) link_->send_alive(frame);
}

void HostLinks::give_up_dialing() { retire(std::move(dialing_)); }

void HostLinks::retire(std::unique_ptr<HostLink> link) {
  if (!link) return;
  link->close();
  // In a later turn: a link must not be destroyed inside one of its own events.
  std::shared_ptr<HostLink> shared = std::move(link);
  boost::asio::post(loop_, [shared] {});
}

}  // namespace ivy
