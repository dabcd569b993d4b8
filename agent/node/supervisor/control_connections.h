// SPDX-License-Identifier: Apache-2.0
// The connections of the control socket (proto/wire/control_wire.h): accepts them, reads whole
// packets, answers. Only our own user is heard; a peer that sends garbage, nothing, or too much
// loses its connection and harms nobody else. Thread: the loop's. Lifetime: destroy it outside its
// handlers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  pid_t pid = 0;  // The peer's, in this pid namespace; 0: it is in a namespace that is not visible.
  Descriptor pidfd;                   // None: not available; the socket's end must do.
  std::optional<std::uint32_t> slot;  // The rank's place, once it has attached.
  bool is_closed = false;
};

class ControlConnections {
 public:
  // When there is one more unattached peer, the oldest of them is closed.
  static constexpr std::size_t kMaxUnattached = 64;

  using Pointer = std::shared_ptr<ControlConnection>;
  struct Handlers {
    // Receives each packet; an error closes the connection.
    std::function<Result<void>(const Pointer&, std::string_view)> packet;
    std::function<void(ControlConnection&)> closed;
  };

  ControlConnections(boost::asio::io_context& loop, Handlers handlers);

  // Binds and listens on `path`, if it does not listen already.
  Result<void> listen(const std::string& path);
  const std::string& path() const { return path_; }  // Empty: it does not listen.
  // Reads the peer's bytes that are still unread.
  void read_rest(const Pointer& connection);
  // `fd`, if there is one, goes along and stays the caller's.
  static void send(ControlConnection& connection, const control::Reply& reply, int fd = -1);
  void close(const Pointer& connection);
  // Closes all of them as unattached ones.
  void close_all();

 private:
  void accept();
  bool accept_one();  // False: no descriptor is left.
  void close_oldest_unattached();
  void read(const Pointer& connection);
  bool take_packets(const Pointer& connection);

  boost::asio::io_context& loop_;
  const Handlers handlers_;
  boost::asio::posix::stream_descriptor listener_;
  std::string path_;
  boost::asio::steady_timer accept_timer_;
  std::vector<Pointer> connections_;  // In the order of their arrival.
};

}  // namespace ivy
