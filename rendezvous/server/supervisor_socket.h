// SPDX-License-Identifier: Apache-2.0
// The store's end of the socket to the supervisor that started it
// (agent/node/supervisor/job_store.h), which carries lines of text in both directions. Without such
// a socket, the store's lines go to standard output. Thread: the loop's.
//
//   the supervisor sends
//     generation N     forget the values and connections of the previous generation
//     put KEY VALUE    write a value; the key has no blanks
//     complete         all ranks have joined: reject further ones
//     quit             exit
//   the store sends
//     generation N     that order has been carried out
//     log TEXT         a note for people
//     stall TEXT       all ranks wait for one another, and how
//     end TEXT         why the store exits
//     other lines, such as "ready" and "listening on ADDRESS", for people who start it by hand
//
// A vertical tab in TEXT stands for a line feed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace ivy::store {

// The supervisor's orders. Implemented by the store's process (serve.cc).
class SupervisorOrders {
 public:
  virtual void begin_generation(std::uint32_t generation) = 0;
  // The key contains no blanks; the value is the rest of the line.
  virtual void put(std::string key, std::string value) = 0;
  // A host has joined the job: clients from this numeric address may use torch's dialect.
  virtual void add_peer(std::string address) = 0;
  virtual void all_joined() = 0;
  // Called for "quit", at the end of the socket, for a line of more than 4 KiB, and for a
  // "generation" without a number. No other order follows.
  virtual void orders_ended() = 0;

 protected:
  ~SupervisorOrders() = default;
};

class SupervisorSocket {
 public:
  // `fd` is the socket, or -1 for none. Unknown orders are ignored, because the supervisor may be
  // newer. `owner` must outlive the socket.
  SupervisorSocket(boost::asio::io_context& loop, int fd, SupervisorOrders& owner)
      : socket_(loop), fd_(fd), owner_(owner) {}

  void start();
  // Sends `text` as one line. Drops the line if the socket is full, because the store must not wait
  // for its reader.
  void send_line(std::string text);
  // Confirms a new generation. Unlike a line for people, the confirmation must arrive, because the
  // next workers wait for it.
  void acknowledge(std::uint32_t generation);

 private:
  void wait();
  // Returns false if no more orders are to be read (orders_ended()).
  bool read();
  // Returns false after "quit" or a malformed order.
  bool execute(std::string_view line);

  boost::asio::posix::stream_descriptor socket_;
  const int fd_;
  SupervisorOrders& owner_;
  std::string line_;
};

}  // namespace ivy::store
