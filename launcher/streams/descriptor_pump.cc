#include "launcher/streams/descriptor_pump.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <utility>

namespace ivy {
namespace asio = boost::asio;

DescriptorPump::DescriptorPump(asio::io_context& loop, int read_fd, int write_fd)
    : shared_(read_fd == write_fd), input_(loop), output_(loop) {
  boost::system::error_code ignored;
  if (read_fd >= 0) input_.assign(read_fd, ignored);
  if (write_fd >= 0 && !shared_) output_.assign(write_fd, ignored);
}

void DescriptorPump::start(Handlers handlers) {
  handlers_ = std::move(handlers);
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
        self->handlers_.bytes(std::string_view(self->buffer_->data(), count));
        if (!self->stopped_) self->read();
      });
}

void DescriptorPump::write(std::string_view bytes) {
  queued_.append(bytes);
  if (writing_.empty()) write_queued();
}

void DescriptorPump::write_queued() {
  writing_ = std::exchange(queued_, {});
  written_ = 0;
  write_on();
}

// Piece by piece, so that unwritten() tells how a large text gets on.
void DescriptorPump::write_on() {
  writer().async_write_some(
      asio::buffer(std::string_view(writing_).substr(written_)),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t count) {
        // A reader that went away shows as the end of our input too, behind what it still had to
        // say.
        if (self->stopped_ || error) return;
        self->written_ += count;
        if (self->written_ < self->writing_.size()) return self->write_on();
        self->writing_.clear();
        self->written_ = 0;
        if (!self->queued_.empty()) return self->write_queued();
        if (self->ending_) return self->end_writing();
        self->handlers_.drained();
      });
}

void DescriptorPump::end_writing() {
  ending_ = true;
  if (!writing_.empty() || shared_) return;
  boost::system::error_code ignored;
  output_.close(ignored);
}

void DescriptorPump::stop() {
  stopped_ = true;
  boost::system::error_code ignored;
  input_.close(ignored);
  output_.close(ignored);
}

void DescriptorPump::end(const std::string& why) {
  const auto ended = std::move(handlers_.ended);
  stop();
  ended(why);
}

}  // namespace ivy
