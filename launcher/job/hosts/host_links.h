// SPDX-License-Identifier: Apache-2.0
// The links of one host's session: the active link, which carries the bytes, and a link that is
// being dialled to replace it. Thread: the loop's, except for send_alive(). Lifetime: destroy it
// outside its events.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"

namespace ivy {

// Makes a link that is not open yet. attempt: 0 for the first link of the session, then 1, 2...
// BringUp::make_session() sets it to make_link() of launcher/links/choice/transport.h.
using MakeHostLink = std::function<std::unique_ptr<HostLink>(HostLinkEvents& owner, int attempt)>;

// Implemented by HostSession.
class ActiveLinkEvents {
 public:
  // The link that was dialled is the active one from now on.
  virtual void active_link_up(const LinkUp& up) = 0;
  // Bytes of the active link.
  virtual void active_link_bytes(std::string_view bytes) = 0;
  // Everything given to write() has left.
  virtual void active_link_drained() = 0;
  // The active link broke.
  virtual void active_link_broken(const LinkDown& down) = 0;
  virtual void dial_failed(const LinkDown& down) = 0;
  virtual void dial_progress(const LinkStep& step) = 0;
  // The dial attempt has reached the host and waits there for this.
  virtual void dial_stuck(const std::string& what) = 0;

 protected:
  ~ActiveLinkEvents() = default;
};

class HostLinks final : private HostLinkEvents {
 public:
  HostLinks(boost::asio::io_context& loop, MakeHostLink make_link, ActiveLinkEvents& events)
      : loop_(loop), make_link_(std::move(make_link)), events_(events) {}

  bool is_dialing() const { return dialing_ != nullptr; }
  // Starts to dial a link.
  void dial(const OpenRequest& request);
  void give_up_dialing();

  // Null if no link is up.
  const HostLink* active() const { return link_.get(); }
  bool can_write() const { return link_ && !writes_; }
  bool has_written() const { return !writes_; }  // Everything given to write() has left.
  void write(std::string bytes);
  // Allows send_alive() to use the active link, or forbids it. A new link starts with false.
  void allow_alive(bool allowed);
  // Sends a whole frame on the active link, if allowed. Thread: any.
  void send_alive(std::string_view frame);
  // Closes the active link.
  void drop();

 private:
  // HostLinkEvents
  void link_up(HostLink& link, const LinkUp& up) override;
  void link_bytes(HostLink& link, std::string_view bytes) override;
  void link_drained(HostLink& link) override;
  void link_down(HostLink& link, const LinkDown& down) override;
  void link_progress(HostLink&, const LinkStep& step) override { events_.dial_progress(step); }
  void link_stuck(HostLink&, const std::string& what) override { events_.dial_stuck(what); }

  void retire(std::unique_ptr<HostLink> link);

  boost::asio::io_context& loop_;
  const MakeHostLink make_link_;
  ActiveLinkEvents& events_;
  std::mutex alive_mutex_;             // Held while send_alive() uses link_.
  bool allows_alive_ = false;          // Changed only with alive_mutex_ held, before link_ changes.
  std::unique_ptr<HostLink> link_;     // The active link; it may be silent.
  std::unique_ptr<HostLink> dialing_;  // Replaces link_ when it is up.
  int attempts_ = 0;                   // Links that were dialled.
  bool writes_ = false;                // Bytes given to write() have not all left.
};

}  // namespace ivy
