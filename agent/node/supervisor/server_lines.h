// SPDX-License-Identifier: Apache-2.0
// Reads the output of one of ivyrun's servers as lines. Thread: the loop's. Lifetime: a member of
// its owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "proto/os/descriptor.h"

namespace ivy {

class ServerLines;

// Implemented by the owner of a ServerLines.
class ServerLinesEvents {
 public:
  // Receives each line without its line end.
  virtual void server_line(ServerLines& from, const std::string& line) = 0;

 protected:
  ~ServerLinesEvents() = default;
};

class ServerLines {
 public:
  ServerLines(boost::asio::io_context& loop, ServerLinesEvents& owner)
      : from_(loop), owner_(owner) {}

  // Waits for lines until `lifetime`, the owner's, has expired.
  void open(Descriptor from, std::weak_ptr<void> lifetime) {
    close();
    text_.clear();
    fcntl(from.get(), F_SETFL, O_NONBLOCK);
    from_.assign(from.release());
    wait(std::move(lifetime));
  }

  // Handles the lines that have arrived. Returns false if the process has closed its end.
  bool read_some() {
    if (!from_.is_open()) return false;
    std::array<char, 4096> bytes{};
    ssize_t count = 0;
    while ((count = read(from_.native_handle(), bytes.data(), bytes.size())) > 0)
      take({bytes.data(), static_cast<std::size_t>(count)});
    return count < 0 && (errno == EAGAIN || errno == EINTR);
  }

  void close() {
    boost::system::error_code ignored;
    if (from_.is_open()) from_.close(ignored);
  }

  // The descriptor for replies.
  int fd() { return from_.native_handle(); }

 private:
  // Longer than any line of the protocol.
  static constexpr std::size_t kMaxLine = 64u << 10;

  void wait(std::weak_ptr<void> lifetime) {
    from_.async_wait(
        boost::asio::posix::stream_descriptor::wait_read,
        [this, lifetime = std::move(lifetime)](const boost::system::error_code& error) {
          const std::shared_ptr<void> alive = lifetime.lock();
          if (alive && !error && read_some()) wait(lifetime);
        });
  }

  void take(std::string_view bytes) {
    text_ += bytes;
    for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      const std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      owner_.server_line(*this, line);
    }
    if (text_.size() > kMaxLine) text_.clear();
  }

  boost::asio::posix::stream_descriptor from_;
  ServerLinesEvents& owner_;
  std::string text_;
};

}  // namespace ivy
