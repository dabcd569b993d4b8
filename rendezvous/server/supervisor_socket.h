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
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace ivy::store {

class SupervisorSocket {
 public:
  // `fd` is the socket, or -1 for none. Calls `generation` and `complete` (may be null) for each
  // order of that name, and `ended` for "quit", at the end of the socket, for a line of more than 4
  // KiB, and for a "generation" without a number. Ignores unknown orders, because the supervisor
  // may be newer.
  SupervisorSocket(boost::asio::io_context& loop, int fd,
                   std::function<void(std::uint32_t)> generation, std::function<void()> ended,
                   std::function<void()> complete = nullptr);

  // Sets the handler for keys that the supervisor writes into the store. Keys contain no blanks;
  // the value is the rest of the line.
  void on_put(std::function<void(std::string key, std::string value)> put) {
    put_ = std::move(put);
  }

  void start();
  // Sends `text` as one line. Drops the line if the socket is full, because the store must not wait
  // for its reader.
  void send_line(std::string text);
  // Confirms a new generation. Unlike a line for people, the confirmation must arrive, because the
  // next workers wait for it.
  void acknowledge(std::uint32_t generation);

 private:
  void wait();
  // Returns false if no more orders are to be read (see `ended` of the constructor).
  bool read();
  // Returns false after "quit" or a malformed order.
  bool execute(std::string_view line);

  boost::asio::posix::stream_descriptor socket_;
  const int fd_;
  const std::function<void(std::uint32_t)> generation_;
  const std::function<void()> ended_;
  const std::function<void()> complete_;
  std::function<void(std::string key, std::string value)> put_;
  std::string line_;
};

}  // namespace ivy::store
