// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/descriptor_pump.h"

#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

namespace ivy {
namespace asio = boost::asio;

DescriptorPump::DescriptorPump(asio::io_context& loop, DescriptorPumpEvents& events, int read_fd,
                               int write_fd)
    : events_(events), shared_(read_fd == write_fd), input_(loop), output_(loop) {
  boost::system::error_code ignored;
  if (read_fd >= 0) input_.assign(read_fd, ignored);
  if (write_fd >= 0 && !shared_) output_.assign(write_fd, ignored);
}

void DescriptorPump::start_reading() {
  buffer_ = std::make_unique_for_overwrite<std::array<char, kReadBytes>>();
  read();
}

void DescriptorPump::read() {
  input_.async_read_some(
      asio::buffer(*buffer_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t count) {
        if (self->stopped_) return;
        if (error) {
          self->end(error == asio::error::eof ? "end of file" : error.message());
          return;
        }
        self->events_.pump_bytes(*self, std::string_view(self->buffer_->data(), count));
        if (!self->stopped_) self->read();
      });
}

void DescriptorPump::write(std::string_view bytes) {
  {
    const std::lock_guard lock(write_mutex_);
    queued_.append(bytes);
  }
  if (!std::exchange(is_writing_, true)) write_on();
}

// Writes once per turn of the loop, so that a large text does not delay others and unwritten()
// shows the progress.
void DescriptorPump::write_on() {
  {
    const std::lock_guard lock(write_mutex_);
    // If the peer has closed its end, reading ends too, after the peer's remaining output.
    if (!write_once()) return;
    if (written_ == queued_.size()) {
      // The caller may still be inside write().
      return asio::post(writer().get_executor(),
                        [self = shared_from_this()] { self->have_written(); });
    }
  }
  writer().async_wait(asio::posix::stream_descriptor::wait_write,
                      [self = shared_from_this()](const boost::system::error_code& error) {
                        if (!self->stopped_ && !error) self->write_on();
                      });
}

void DescriptorPump::have_written() {
  if (stopped_) return;
  if (unwritten() > 0) return write_on();
  is_writing_ = false;
  if (ending_) return end_writing();
  events_.pump_drained(*this);
}

bool DescriptorPump::write_once() {
  if (written_ == queued_.size()) return true;
  ssize_t count = 0;
  do {
    count = ::write(writer().native_handle(), queued_.data() + written_, queued_.size() - written_);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return errno == EAGAIN;
  written_ += static_cast<std::size_t>(count);
  if (written_ < queued_.size()) return true;
  queued_.clear();
  written_ = 0;
  return true;
}

void DescriptorPump::write_alive(std::string_view frame) {
  const std::lock_guard lock(write_mutex_);
  if (stopped_ || has_ended_writing_) return;
  // Frames must not mix, so write the rest of the loop's data first.
  if (!write_once() || written_ < queued_.size()) return;
  queued_ = frame;
  write_once();  // The loop writes the rest before its next bytes.
}

std::size_t DescriptorPump::unwritten() {
  const std::lock_guard lock(write_mutex_);
  return queued_.size() - written_;
}

void DescriptorPump::end_writing() {
  ending_ = true;
  if (is_writing_ || shared_) return;
  const std::lock_guard lock(write_mutex_);
  has_ended_writing_ = true;
  boost::system::error_code ignored;
  output_.close(ignored);
}

void DescriptorPump::stop() {
  const std::lock_guard lock(write_mutex_);
  stopped_ = true;
  boost::system::error_code ignored;
  input_.close(ignored);
  output_.close(ignored);
}

void DescriptorPump::end(const std::string& why) {
  stop();
  events_.pump_ended(*this, why);
}

}  // namespace ivy
