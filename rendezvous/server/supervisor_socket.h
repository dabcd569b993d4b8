// The store's and the leaf's end of the socket to the supervisor that started them: lines of news
// upwards, orders downwards ("generation N", "complete", "quit"). Without such a socket news goes
// to standard output. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ivy::store {

class SupervisorSocket {
 public:
  // `fd` is taken, or -1. `generation` is called for each such order, `complete` (may be null) for
  // that one; the loop is stopped by "quit", by the end of the socket, and by a line of more than 4
  // KiB. An order that is not known is passed over: the supervisor may be younger.
  SupervisorSocket(boost::asio::io_context& loop, int fd,
                   std::function<void(std::uint32_t)> generation, std::function<void()> ended,
                   std::function<void()> complete = nullptr);

  bool is_there() const { return fd_ >= 0; }
  // Begins to read.
  void start();
  // One line, whatever line feeds `text` holds: they become vertical tabs. A full socket loses the
  // line: the store must not wait for its reader.
  void say(std::string text);
  // Unlike a line for people it must arrive: the next workers wait for it.
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
  std::string line_;
};

}  // namespace ivy::store
