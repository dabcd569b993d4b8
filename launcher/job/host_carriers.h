// The carriers of one host's session: the one that bears it now, and one that is on its way to
// replace it. Thread: the loop's, but for send_alive(). Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"

namespace ivy {

// attempt: 0 for the first link, then 1, 2...
using MakeHostLink =
    std::function<std::unique_ptr<HostLink>(const HostLink::Handlers&, int attempt)>;

class HostCarriers {
 public:
  struct Handlers {
    std::function<void(const LinkUp&)> up;        // What was dialled bears the session from now on.
    std::function<void(std::string_view)> bytes;  // From the carrier that bears it.
    std::function<void()> drained;
    std::function<void(const LinkDown&)> broken;  // What bore the session is gone.
    std::function<void(const LinkDown&)> failed;  // What was dialled did not come up.
    std::function<void(const RemoteText&)> progress;
    std::function<void(const std::string&)> stuck;  // What was dialled waits for this, there.
  };
  HostCarriers(boost::asio::io_context& loop, MakeHostLink make_link, Handlers handlers)
      : loop_(loop), make_link_(std::move(make_link)), handlers_(std::move(handlers)) {}

  bool is_dialing() const { return dialing_ != nullptr; }
  void dial(const OpenRequest& request);
  void give_up_dialing();

  // The number of the carrier that bears the session; -1: none does.
  int serial() const { return serial_; }
  bool can_write() const { return link_ && !writes_; }
  bool has_written() const { return !writes_; }
  void write(std::string bytes);
  // Whether send_alive() may use the carrier that bears the session now; the next one may not yet.
  void allow_alive(bool allowed);
  // Passes a whole frame to that carrier. Thread: any.
  void send_alive(std::string_view frame);
  void drop();

 private:
  void on_up(int serial, const LinkUp& up);
  void on_down(int serial, const LinkDown& down);
  void retire(std::unique_ptr<HostLink> link);

  boost::asio::io_context& loop_;
  const MakeHostLink make_link_;
  const Handlers handlers_;
  std::mutex alive_mutex_;             // Held while send_alive() uses link_.
  bool allows_alive_ = false;          // Changed with alive_mutex_ held, before link_ changes.
  std::unique_ptr<HostLink> link_;     // Bears the session now (or is silent).
  std::unique_ptr<HostLink> dialing_;  // On its way to replace link_.
  int serial_ = -1;
  int dialing_serial_ = -1;
  int next_serial_ = 0;
  bool writes_ = false;
};

}  // namespace ivy
