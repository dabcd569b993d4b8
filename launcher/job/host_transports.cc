// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/host_transports.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ivy {

void HostTransports::dial(const OpenRequest& request) {
  const int serial = next_serial_++;
  dialing_serial_ = serial;
  HostLink::Handlers handlers;
  handlers.up = [this, serial](const LinkUp& up) { on_up(serial, up); };
  handlers.bytes = [this, serial](std::string_view bytes) {
    if (serial == serial_) events_.transport_bytes(bytes);
  };
  handlers.drained = [this, serial] {
    if (serial != serial_) return;
    writes_ = false;
    events_.transport_drained();
  };
  handlers.down = [this, serial](const LinkDown& down) { on_down(serial, down); };
  handlers.progress = [this](const RemoteText& step) { events_.dial_progress(step); };
  handlers.stuck = [this](const std::string& what) { events_.dial_stuck(what); };
  dialing_ = make_link_(handlers, serial);
  dialing_->open(request);
}

void HostTransports::on_up(int serial, const LinkUp& up) {
  if (serial != dialing_serial_) return;
  // The new link is up before the old one is dropped: the supervisor must not see a gap between.
  drop();
  link_ = std::move(dialing_);
  serial_ = serial;
  dialing_serial_ = -1;
  events_.transport_up(up);
}

void HostTransports::on_down(int serial, const LinkDown& down) {
  if (serial == serial_) {
    drop();
    events_.transport_broken(down);
  } else if (serial == dialing_serial_) {
    give_up_dialing();
    events_.dial_failed(down);
  }
}

void HostTransports::write(std::string bytes) {
  writes_ = true;
  link_->write(std::move(bytes));
}

void HostTransports::drop() {
  serial_ = -1;
  writes_ = false;
  allow_alive(false);
  retire(std::move(link_));
}

void HostTransports::allow_alive(bool allowed) {
  const std::lock_guard lock(alive_mutex_);
  allows_alive_ = allowed;
}

void HostTransports::send_alive(std::string_view frame) {
  const std::lock_guard lock(alive_mutex_);
  if (allows_alive_) link_->send_alive(frame);
}

void HostTransports::give_up_dialing() {
  dialing_serial_ = -1;
  retire(std::move(dialing_));
}

void HostTransports::retire(std::unique_ptr<HostLink> link) {
  if (!link) return;
  link->close();
  // A link must not be destroyed inside one of its own handlers.
  std::shared_ptr<HostLink> shared = std::move(link);
  boost::asio::post(loop_, [shared] {});
}

}  // namespace ivy
