// SPDX-License-Identifier: Apache-2.0
// Moves bytes between the loop and one pair of descriptors (a socket, or the two pipes of a child).
// Thread: the loop's, but for write_alive(). Lifetime: held by shared pointers of its pending
// operations; stop() before the owner goes, after which no handler is called.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace ivy {

class DescriptorPump : public std::enable_shared_from_this<DescriptorPump> {
 public:
  struct Handlers {
    std::function<void(std::string_view)> bytes;
    std::function<void()> drained;                  // Everything given to write() has left.
    std::function<void(const std::string&)> ended;  // Once: "end of file", or the error's text.
  };
  // Owns both descriptors, which may be the same number and must be non-blocking. -1: no such
  // direction.
  DescriptorPump(boost::asio::io_context& loop, int read_fd, int write_fd);

  void start(Handlers handlers);
  // Instead of start(), where there is nothing to read.
  void use_for_writing(std::function<void()> drained) { handlers_.drained = std::move(drained); }
  // Appends to what is still to be written.
  void write(std::string_view bytes);
  // Writes a whole frame behind what is still to be written, if the reader takes all of that now;
  // else does nothing. Thread: any.
  void write_alive(std::string_view frame);
  // Bytes given to write() that have not left yet.
  std::size_t unwritten();
  // The peer sees an end of file behind what was written; reading goes on.
  void end_writing();
  // Closes both at once; the peer sees an end of file. Unwritten bytes are dropped.
  void stop();

 private:
  void read();
  void write_on();
  void have_written();
  // With write_mutex_ held: one write. False if nothing more can be written, ever.
  bool write_once();
  void end(const std::string& why);
  boost::asio::posix::stream_descriptor& writer() { return shared_ ? input_ : output_; }

  // One read: large enough that a flood of output costs few wake-ups.
  static constexpr std::size_t kReadBytes = 128u << 10;

  const bool shared_;
  boost::asio::posix::stream_descriptor input_;
  boost::asio::posix::stream_descriptor output_;
  Handlers handlers_;
  std::unique_ptr<std::array<char, kReadBytes>> buffer_;
  bool is_writing_ = false;  // The loop waits for room, or for its turn to say that all has left.
  bool ending_ = false;
  bool stopped_ = false;    // Changed with write_mutex_ held.
  std::mutex write_mutex_;  // Guards the rest, and the descriptor that is written to.
  std::string queued_;
  std::size_t written_ = 0;  // Bytes of queued_ that have left.
  bool has_ended_writing_ = false;
};

}  // namespace ivy
