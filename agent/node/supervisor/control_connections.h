// SPDX-License-Identifier: Apache-2.0
// The connections of the control socket (proto/wire/control_wire.h): accepts them, reads whole
// packets, and sends answers. Accepts only our own user. A peer that sends garbage, nothing, or too
// much loses its connection; other peers are not affected. Thread: the loop's. Lifetime: its owner
// must outlive it; destroy it outside the owner's functions.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"

namespace ivy {

struct ControlConnection {
  ControlConnection(boost::asio::io_context& loop, int fd) : socket(loop, fd) {}

  boost::asio::posix::stream_descriptor socket;
  pid_t pid = 0;     // The peer's, in this pid namespace; 0 if not visible.
  Descriptor pidfd;  // Empty if not available: then end of file counts as the peer's exit.
  std::optional<std::uint32_t> slot;  // The rank's slot, once it has attached.
  bool is_closed = false;
};

// Implemented by ControlServer.
class ControlConnectionEvents {
 public:
  // Receives each packet; an error closes the connection.
  virtual Result<void> on_packet(const std::shared_ptr<ControlConnection>& connection,
                                 std::string_view packet) = 0;
  virtual void on_closed(const ControlConnection& connection) = 0;

 protected:
  ~ControlConnectionEvents() = default;
};

class ControlConnections {
 public:
  // Limit of unattached peers: those that have not attached as a rank (ATTACH in control_wire.h).
  // Beyond it, the oldest of them is closed.
  static constexpr std::size_t kMaxUnattached = 64;

  using Pointer = std::shared_ptr<ControlConnection>;

  ControlConnections(boost::asio::io_context& loop, ControlConnectionEvents& owner);

  // Binds and listens on `path`, if it does not listen already.
  Result<void> listen(const std::string& path);
  const std::string& path() const { return path_; }  // Empty if it does not listen.
  // Handles the packets that the peer has sent and that are still unread.
  void read_rest(const Pointer& connection);
  // Sends `fd`, unless it is -1, with the reply. The caller keeps it.
  static void send(ControlConnection& connection, const control::Reply& reply, int fd = -1);
  void close(const Pointer& connection);
  // Closes all connections, without reporting them as connections of a rank.
  void close_all();

 private:
  void accept();
  // Returns false if no descriptor is left.
  bool accept_one();
  void close_oldest_unattached();
  void read(const Pointer& connection);
  // Returns false if the connection has ended or must be closed.
  bool take_packets(const Pointer& connection);

  boost::asio::io_context& loop_;
  ControlConnectionEvents& owner_;
  boost::asio::posix::stream_descriptor listener_;
  std::string path_;
  boost::asio::steady_timer accept_timer_;
  std::vector<Pointer> connections_;  // In the order of their arrival.
};

}  // namespace ivy
