// Standard input of ivyrun on its way to rank 0. Never changes the flags of the shared descriptor,
// and reads a terminal only while ivyrun is in the foreground, so that a background job is not
// stopped. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

namespace ivy {

class StdinFeed {
 public:
  struct Handlers {
    std::function<std::size_t()> room;       // Bytes that may be read now.
    std::function<void(std::string)> bytes;  // Empty: end of the input, once.
  };
  StdinFeed(boost::asio::io_context& loop, Handlers handlers);
  // Standard input is a pipe, a socket, a file or a terminal, and not /dev/null.
  static bool worth_forwarding();
  void start();
  // There may be room again.
  void resume();
  void stop();

 private:
  void wait();
  void read_some();
  bool may_read_terminal() const;

  Handlers handlers_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  bool is_terminal_ = false;
  bool is_file_ = false;
  bool waiting_ = false;
  bool ended_ = true;
};

}  // namespace ivy
