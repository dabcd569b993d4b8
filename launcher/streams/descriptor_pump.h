// SPDX-License-Identifier: Apache-2.0
// Moves bytes between the loop and a pair of descriptors (a socket, or the two pipes of a child).
// Thread: the loop's, except for write_alive(). Lifetime: kept alive by its pending operations; the
// owner must call stop() before its own destruction, after which nothing is called.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace ivy {

class DescriptorPump;

// Implemented by the owner of pumps.
class DescriptorPumpEvents {
 public:
  virtual void pump_bytes(DescriptorPump& pump, std::string_view bytes) = 0;
  // All bytes passed to write() have been written.
  virtual void pump_drained(DescriptorPump& pump) = 0;
  // The last event of a pump. why: "end of file", or the error's text.
  virtual void pump_ended(DescriptorPump& pump, const std::string& why) = 0;

 protected:
  ~DescriptorPumpEvents() = default;
};

class DescriptorPump : public std::enable_shared_from_this<DescriptorPump> {
 public:
  // Takes ownership of both descriptors, which may be the same and must be non-blocking. -1 means
  // that there is no such direction.
  DescriptorPump(boost::asio::io_context& loop, DescriptorPumpEvents& events, int read_fd,
                 int write_fd);

  void start_reading();
  // Appends to the bytes that are waiting to be written.
  void write(std::string_view bytes);
  // Sends a frame after the waiting bytes, if the peer accepts all of those immediately; otherwise
  // drops the frame. Thread: any.
  void write_alive(std::string_view frame);
  // Returns the number of bytes passed to write() and not written yet.
  std::size_t unwritten();
  // Closes the writing direction after the waiting bytes; reading continues.
  void end_writing();
  // Closes both directions immediately; the peer sees an end of file. Unwritten bytes are dropped.
  void stop();

 private:
  void read();
  void write_on();
  void have_written();
  // Call it with write_mutex_ held. Performs one write. Returns false if writing has become
  // impossible.
  bool write_once();
  void end(const std::string& why);
  boost::asio::posix::stream_descriptor& writer() { return shared_ ? input_ : output_; }

  // Bytes per read, large enough that a flood of output causes few wake-ups.
  static constexpr std::size_t kReadBytes = 128u << 10;

  DescriptorPumpEvents& events_;
  const bool shared_;
  boost::asio::posix::stream_descriptor input_;
  boost::asio::posix::stream_descriptor output_;
  std::unique_ptr<std::array<char, kReadBytes>> buffer_;
  bool is_writing_ = false;  // The loop waits for the socket, or for its turn to report that all
                             // bytes were written.
  bool ending_ = false;
  bool stopped_ = false;    // Changed with write_mutex_ held.
  std::mutex write_mutex_;  // Guards the rest, and the descriptor for writing.
  std::string queued_;
  std::size_t written_ = 0;  // Bytes of queued_ that were written.
  bool has_ended_writing_ = false;
};

}  // namespace ivy
