// SPDX-License-Identifier: Apache-2.0
// One connection that a host has made to the launcher: TLS with the key of the step or of the join,
// then the host's greeting (proto/wire/dial_wire.h), then bytes both ways.
//
// Thread: the loop's, except for write_alive(). Lifetime: its pending operations hold shared
// pointers to it. Nothing is called after stop().
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

// Implemented by the owner of a stream.
class DialBackStreamEvents {
 public:
  virtual void stream_bytes(std::string_view bytes) = 0;
  // Everything given to write() has left.
  virtual void stream_drained() = 0;
  // The last event.
  virtual void stream_ended(const std::string& why) = 0;

 protected:
  ~DialBackStreamEvents() = default;
};

class DialBackStream : public std::enable_shared_from_this<DialBackStream> {
 public:
  using Greeted = std::function<void(const Result<DialGreeting>&)>;

  // Limit of bytes from a peer that has not proved its key; ivy-node sends fewer. A peer that sends
  // more, or does not speak TLS, is rejected.
  static constexpr std::size_t kUnprovedMaxBytes = 512;

  DialBackStream(boost::asio::ip::tcp::socket socket, PskTls& tls);

  // The launcher's side: does the handshake and reads the greeting. Calls back once, unless
  // stopped. Unauthenticated: the message says what the peer did wrong. Cancelled: the peer closed
  // the connection.
  void greet(Greeted greeted);
  // The other side, for an ivyrun that joins: does the handshake and sends the greeting. Calls back
  // once, unless stopped, with the same errors.
  void send_greeting(const DialGreeting& own,
                     std::function<void(const Result<void>&)> on_greeting_sent);
  // Starts to deliver bytes; events may come from within this call. Call once, after greet() or
  // send_greeting(). `events` must live until stop().
  void start(DialBackStreamEvents& events);
  // Appends to the bytes to be written.
  void write(std::string_view bytes);
  // Writes a heartbeat frame after everything that is still to be written, if the peer takes all of
  // that now; otherwise does nothing. Call only after start(). Thread: any.
  void write_alive(std::string_view frame);
  // Closes the connection immediately, and drops unwritten bytes. The peer sees the end of the
  // connection.
  void stop();

  const std::string& peer_address() const { return peer_address_; }
  const std::string& local_address() const { return local_address_; }
  // Returns the name of the key that the peer has proved to know.
  std::string identity() const { return stream_.identity(); }

 private:
  using Step = void (DialBackStream::*)();
  void when(PskStream::Step step, Step again);
  bool looks_like_tls();
  void do_handshake();
  void do_handshake_first();
  void read_greeting();
  void answer(const Result<DialGreeting>& greeting);
  void reject(PskStream::Step step);
  void read();
  void write_queued();
  // Writes what it can of the queued bytes. kDone: all of them. Call with mutex_ held.
  PskStream::Step write_all_queued();
  void end(const std::string& why);

  // Largest TLS record.
  static constexpr std::size_t kReadBytes = 16u << 10;
  // Reads after which other connections get their turn.
  static constexpr int kReadsPerTurn = 16;

  boost::asio::ip::tcp::socket socket_;
  std::mutex mutex_;  // Guards stream_ and the unwritten bytes after the handshake.
  PskStream stream_;  // Declared after socket_, so that it is destroyed before it.
  std::string peer_address_;
  std::string local_address_;
  Greeted greeted_;
  std::function<void(const Result<void>&)> on_greeting_sent_;
  DialBackStreamEvents* events_ = nullptr;  // Null before start().
  std::string greeting_;                    // Received, or to be sent.
  std::string queued_;
  std::size_t written_ = 0;  // Bytes of queued_ that were written.
  bool is_writing_ = false;
  bool is_stopped_ = false;  // Changed only with mutex_ held.
};

}  // namespace ivy
