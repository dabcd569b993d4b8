// The launcher's standard input on its way to the one worker that gets it. Credit is granted back
// as bytes are written, so a worker that does not read stops the launcher's reading. Thread: the
// loop's. Lifetime: outlived by the session.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <string>

#include "proto/os/descriptor.h"
#include "proto/wire/link.h"

namespace ivy {

class InputPipe {
 public:
  // `granted` is called after credit was given back.
  InputPipe(boost::asio::io_context& loop, link::Session& session, std::function<void()> granted);

  // Takes over the worker's pipe (non-blocking). Earlier bytes wait until then; the session's
  // window bounds them.
  void open(Descriptor fd);
  // Bytes of one Input frame; empty: the end of standard input.
  void push(std::string bytes);
  // Closes the pipe when nothing will read it: waiting and further bytes are dropped and granted.
  void close();

 private:
  enum class State { kNoWorker, kOpen, kClosed };
  void write_some();
  void wait();
  void drop_front();

  boost::asio::posix::stream_descriptor pipe_;
  link::Session& session_;
  std::function<void()> granted_;
  State state_ = State::kNoWorker;
  std::deque<std::string> waiting_;  // An empty string is the end.
  std::size_t written_bytes_ = 0;    // Bytes of the first one that are written.
  bool is_waiting_ = false;
};

}  // namespace ivy
