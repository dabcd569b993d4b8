// SPDX-License-Identifier: Apache-2.0
// The server's listening sockets: accepts connections in small batches, and pauses if no descriptor
// is left. Thread: the loop's.
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

  // Takes ownership of a listening socket. Passes its connections, which are non-blocking, to
  // `take`.
  void add(int listening_fd, Take take);
  // Resumes accepting after descriptors ran out. Call it 4 times per second.
  void retry();
  // Closes all connections that have not been accepted yet.
  void reject_pending();
  void close();

 private:
  struct Listener {
    boost::asio::posix::stream_descriptor socket;
    Take take;
    bool paused = false;   // No descriptor was left; retry() tries again.
    bool starved = false;  // The log has reported it.
  };

  void wait(Listener& listener);
  void accept_some(Listener& listener);

  boost::asio::io_context& loop_;
  LimitedLog& log_;
  Alive alive_;
  std::list<Listener> listeners_;
};

}  // namespace ivy::store
