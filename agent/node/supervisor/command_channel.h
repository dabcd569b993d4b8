// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the session with the launcher: accepts links on the command socket,
// attaches one that authenticates with Attach, and moves frames over the newest. See "Transports"
// in agent/node/roles/README.md.
//
//   accepted --preamble, Attach within 5 s--> attached --newer link, or end of file--> closed
//
// A link that sends invalid bytes is closed; the others are not affected.
// Thread: the loop's, except for send_alive(). Lifetime: owner and lease must outlive it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "agent/node/supervisor/supervisor_start.h"
#include "agent/node/workers/lease.h"
#include "proto/contract/recent_minimum.h"
#include "proto/contract/status.h"
#include "proto/wire/session.h"

namespace ivy {

// Compares two texts in a time that depends only on their lengths.
bool equal_secrets(std::string_view a, std::string_view b);

// Implemented by Supervisor (supervisor.cc).
class CommandChannelEvents {
 public:
  // Receives each Command or Input once and in order. An error closes its link.
  virtual Result<void> on_frame(session::Frame& frame) = 0;
  // A batch was received: credit, acknowledgements or the lease may have changed.
  virtual void on_batch_end() = 0;
  virtual void on_link_lost() = 0;
  // Another launcher has taken the job over. `waiting` is the output that the session still holds
  // and sends to it.
  virtual void on_taken_over(const std::vector<session::OutputChunk>& waiting) = 0;

 protected:
  ~CommandChannelEvents() = default;
};

class CommandChannel {
 public:
  // Limit of standard input in transit to us.
  static constexpr std::uint64_t kInputWindowBytes = 64u << 10;
  static constexpr std::size_t kMaxUnattached = 8;

  CommandChannel(boost::asio::io_context& loop, const SupervisorStart& start, Lease& lease,
                 CommandChannelEvents& owner);
  ~CommandChannel();

  session::Session& session() { return session_; }
  // The token of the first Attach; empty before.
  const std::string& token() const { return token_; }
  // Allows another launcher to take the job over from now on.
  void allow_takeover() { allows_takeover_ = true; }
  // Accepts connections at this listening socket instead of the previous one. Owns it.
  void listen_on(int fd);
  // Writes pending data at the end of this turn of the loop. Any number of calls causes one write.
  void flush();
  // Writes up to 1 MiB of pending data, as far as the link accepts it immediately: the last
  // write before an exit. Returns false if data is left.
  bool flush_now();
  // Sends the loop's heartbeat, with the smallest delay of the launcher's frames.
  void send_heartbeat();
  // Sends the heartbeat of another thread to an attached launcher, between two frames of the loop.
  // Returns false if the link does not accept it now. Thread: any.
  bool send_alive(const session::Alive& alive);
  // Shuts the attached link down. Data that was written before still arrives; call flush_now()
  // for the rest first.
  void hang_up();
  // Closes links that have not attached in time. Call it a few times per second.
  void tick(std::uint64_t now_ns);

 private:
  struct Link;
  using LinkPointer = std::shared_ptr<Link>;

  void accept();
  void accept_pending();
  void add_link(int fd, LinkPeer peer, std::uint64_t attach_timeout_ns);
  void wait_readable(const LinkPointer& link);
  void read_some(const LinkPointer& link);
  void take_unattached(const LinkPointer& link, std::string_view bytes);
  Result<std::uint32_t> check_attach(const session::Frame& frame);
  void attach(const LinkPointer& link, const session::Frame& frame, std::uint32_t takeover);
  void reject(const LinkPointer& link, const std::string& text);
  void deliver(const LinkPointer& link, std::string_view bytes);
  void lose(const LinkPointer& link, LinkLoss loss);
  void close(const LinkPointer& link);
  void write_some();
  // Moves the next frames into `out` after its contents were written. Returns false if no frame is
  // due. Requires write_mutex_.
  bool refill(Link& link);
  ssize_t write_out(Link& link);  // Requires write_mutex_.

  boost::asio::io_context& loop_;
  boost::asio::posix::stream_descriptor listener_;
  const std::string job_id_;
  Lease& lease_;
  CommandChannelEvents& owner_;
  session::Session session_;
  std::string token_;
  RecentMinimum delays_;        // Delays of the launcher's frames, by its own time stamps.
  std::uint32_t takeover_ = 0;  // Number of the launcher to which the session belongs.
  bool allows_takeover_ = false;
  std::vector<LinkPointer> unattached_;
  // Guards the output of the attached link and changes of attached_. The loop reads attached_
  // without it.
  std::mutex write_mutex_;
  LinkPointer attached_;
  std::unique_ptr<char[]> buffer_;
  bool flush_posted_ = false;
  bool accept_paused_ = false;  // No descriptor was available; retried at the next tick.
};

}  // namespace ivy
