// SPDX-License-Identifier: Apache-2.0
// The launcher's end of one connection that a host of a srun step has made to it: TLS by the step's
// key, then the host's greeting (proto/wire/dial_wire.h), then bytes both ways.
//
// Thread: the loop's, but for write_alive(). Lifetime: held by shared pointers of its pending
// operations; after stop() nothing is called.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "proto/trust/psk_tls.h"
#include "proto/wire/dial_wire.h"

namespace ivy {

class DialBackStream : public std::enable_shared_from_this<DialBackStream> {
 public:
  using Greeted = std::function<void(const Result<DialGreeting>&)>;
  struct Handlers {
    std::function<void(std::string_view)> bytes;
    std::function<void()> drained;                  // Everything given to write() has left.
    std::function<void(const std::string&)> ended;  // Called once, with the reason.
  };

  // More than our own peer sends before it is believed. A peer that sends more, or no TLS, is
  // rejected.
  static constexpr std::size_t kUnprovedMaxBytes = 512;

  DialBackStream(boost::asio::ip::tcp::socket socket, PskTls& tls);

  // Shakes hands and reads the greeting. Calls back once, unless stopped: Unauthenticated says what
  // a wrong peer did; Cancelled: the peer hung up without an error.
  void greet(Greeted greeted);
  // The other end's part, for an ivyrun that joins: shakes hands and sends the greeting. Calls back
  // once, unless stopped: Unauthenticated, or Cancelled: the peer hung up.
  void introduce(const DialGreeting& own, std::function<void(const Result<void>&)> introduced);
  // Delivers bytes from here on. Call once, after greet() or introduce().
  void start(Handlers handlers);
  // Appends to the unwritten bytes.
  void write(std::string_view bytes);
  // Writes a whole frame behind what is still to be written, if the peer takes all of that now;
  // else does nothing. Call it after start() only. Thread: any.
  void write_alive(std::string_view frame);
  // Closes the connection immediately; the peer sees its end. Unwritten bytes are dropped.
  void stop();

  const std::string& peer_address() const { return peer_address_; }
  const std::string& local_address() const { return local_address_; }
  // Returns the identity whose key the peer has proved to know.
  std::string identity() const { return stream_.identity(); }

 private:
  using Step = void (DialBackStream::*)();
  void when(PskStream::Step step, Step again);
  bool looks_like_tls();
  void shake_hands();
  void shake_hands_first();
  void read_greeting();
  void answer(const Result<DialGreeting>& greeting);
  void refuse(PskStream::Step step);
  void read();
  void write_queued();
  // With mutex_ held: kDone: nothing is left to be written.
  PskStream::Step write_all_queued();
  void end(const std::string& why);

  // Maximum size of one TLS record.
  static constexpr std::size_t kReadBytes = 16u << 10;
  // Then other connections have their turn.
  static constexpr int kReadsPerTurn = 16;

  boost::asio::ip::tcp::socket socket_;
  std::mutex mutex_;  // After the handshake it guards stream_ and the unwritten bytes.
  PskStream stream_;  // Behind socket_, so that it ends first.
  std::string peer_address_;
  std::string local_address_;
  Greeted greeted_;
  std::function<void(const Result<void>&)> introduced_;
  Handlers handlers_;
  std::string greeting_;
  std::string queued_;
  std::size_t written_ = 0;
  bool is_writing_ = false;
  bool is_stopped_ = false;  // Changed with mutex_ held.
};

}  // namespace ivy
