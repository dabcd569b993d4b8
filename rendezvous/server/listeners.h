// SPDX-License-Identifier: Apache-2.0
// The sockets on which a server listens: accepts connections in small portions, and pauses while no
// descriptor is left. Thread: the loop's.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <list>

#include "proto/os/descriptor.h"
#include "rendezvous/server/alive.h"
#include "rendezvous/server/limited_log.h"

namespace ivy::store {

class Listeners {
 public:
  using Take = std::function<void(Descriptor connection, const sockaddr_storage& from)>;

  Listeners(boost::asio::io_context& loop, LimitedLog& log) : loop_(loop), log_(log) {}

  // Takes a listening socket over. Its connections are given to `take`, never blocking.
  void add(int listening_fd, Take take);
  // Accepts again after a lack of descriptors. Call it 4 times per second.
  void retry();
  // Closes all connections that have not been accepted yet.
  void refuse_pending();
  void close();

 private:
  struct Listener {
    boost::asio::posix::stream_descriptor socket;
    Take take;
    bool paused = false;   // No descriptor was left; tried again by retry().
    bool starved = false;  // The log has said so already.
  };

  void wait(Listener& listener);
  void accept_some(Listener& listener);

  boost::asio::io_context& loop_;
  LimitedLog& log_;
  Alive alive_;
  std::list<Listener> listeners_;
};

}  // namespace ivy::store
