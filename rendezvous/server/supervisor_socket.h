// SPDX-License-Identifier: Apache-2.0
// The store's end of the socket to the supervisor that started it: event lines
// upwards, orders downwards ("generation N", "put KEY VALUE", "complete",
// "quit"). Without such a socket events go
// to standard output. Thread: the loop's.
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
  // Takes `fd`, or -1 for none. `generation` is called for each such order, `complete` (may be
  // null) for that one, and `ended` at "quit", at the end of the socket, and at a line of more than
  // 4 KiB. An unknown order is ignored: the supervisor may be newer.
  SupervisorSocket(boost::asio::io_context& loop, int fd,
                   std::function<void(std::uint32_t)> generation, std::function<void()> ended,
                   std::function<void()> complete = nullptr);

  // Sets the handler of keys that the supervisor writes into the store: text without blanks.
  void on_put(std::function<void(std::string key, std::string value)> put) {
    put_ = std::move(put);
  }

  bool is_there() const { return fd_ >= 0; }
  void start();
  // Sends `text` as one line: its line feeds become vertical tabs. If the socket is full the line
  // is lost: the store must not wait for its reader.
  void say(std::string text);
  // Confirms a new generation. Unlike a line for people it must arrive: the next workers wait for
  // it.
  void acknowledge(std::uint32_t generation);

 private:
  void wait();
  bool read();
  bool obey(std::string_view line);

  boost::asio::posix::stream_descriptor socket_;
  const int fd_;
  const std::function<void(std::uint32_t)> generation_;
  const std::function<void()> ended_;
  const std::function<void()> complete_;
  std::function<void(std::string key, std::string value)> put_;
  std::string line_;
};

}  // namespace ivy::store
