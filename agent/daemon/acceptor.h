// Listening sockets of our own. gRPC 1.51's listener is gone for good once descriptors ran out, and
// lets anybody hold a connection without a word; this one recovers, and passes on only what may go
// further.
//
//   TLS        a complete TLS 1.3 ClientHello within the deadline; see first_bytes.h and
//   half_open.h plaintext  loopback addresses only, on the word of --insecure-loopback Unix our own
//   user and root only, by SO_PEERCRED
//
// What is refused is closed and has one line in the log. A connection whose descriptor comes within
// the margin of RLIMIT_NOFILE is refused, so that running jobs keep room.
//
// Thread: the loop's. Lifetime: is outlived by loop and HalfOpen; its destruction closes the doors.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/daemon/half_open.h"
#include "proto/contract/status.h"

namespace ivy {

struct AcceptorLimits {
  std::chrono::milliseconds hello_deadline{5000};
  // Descriptors below RLIMIT_NOFILE that no connection gets; at most a quarter of the limit is
  // taken.
  int descriptor_margin = 64;
};

// For HalfOpen: is this descriptor, whoever owns it now, still our connection to "10.77.0.1:41234"?
bool is_connected_to(const std::string& peer, int descriptor);
// Ends the connection if it is still the one to this peer; whoever has the descriptor closes it.
void shut_down_connection(const std::string& peer, int descriptor);

class Acceptor {
 public:
  // Takes over a connected socket: non-blocking, close-on-exec.
  using Deliver = std::function<void(int descriptor)>;

  // `address` is numeric, IPv4 or IPv6; an IPv6 socket takes no IPv4. Port 0 picks one.
  // AlreadyExists: somebody listens there. Unavailable: no interface has this address (yet).
  static Result<std::unique_ptr<Acceptor>> listen_tls(boost::asio::io_context& loop,
                                                      const std::string& address,
                                                      std::uint16_t port, HalfOpen& half_open,
                                                      AcceptorLimits limits, Deliver deliver);
  // InvalidArgument unless the address is a loopback's.
  static Result<std::unique_ptr<Acceptor>> listen_plaintext(boost::asio::io_context& loop,
                                                            const std::string& address,
                                                            std::uint16_t port,
                                                            AcceptorLimits limits, Deliver deliver);
  // Makes the directory (0700) when only its last part is missing; refuses one that others can
  // enter. Removes what a dead agent left; AlreadyExists when a living one serves there. A lock
  // file beside the socket stays.
  static Result<std::unique_ptr<Acceptor>> listen_unix(boost::asio::io_context& loop,
                                                       const std::string& path,
                                                       AcceptorLimits limits, Deliver deliver);

  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // "10.0.0.1:7411", "[::]:7411" or the path of the socket.
  const std::string& place() const;
  // Of a TCP socket; 0 otherwise.
  std::uint16_t port() const;

 private:
  class Door;
  explicit Acceptor(std::shared_ptr<Door> door);
  std::shared_ptr<Door> door_;
};

}  // namespace ivy
