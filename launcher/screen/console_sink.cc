// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/console_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <memory>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {
namespace {

// Limit of one write(2): large enough to be cheap, small enough to return to the loop soon.
constexpr std::size_t kWriteBytes = 1u << 20;
// Bytes that a pipe accepts without blocking when poll(2) reports it as writable.
constexpr std::size_t kSurePipeBytes = PIPE_BUF;
// Bytes that a terminal accepts in the same case (WAKEUP_CHARS of the kernel's line discipline).
constexpr std::size_t kSureTerminalBytes = 256;
// Writes after which the loop gets a turn.
constexpr int kMaxWritesAtOnce = 16;

}  // namespace

ConsoleSink::ConsoleSink(boost::asio::io_context& loop, int fd, ConsoleSinkEvents& owner)
    : fd_(fd), owner_(owner), watcher_(loop) {
  choose_method();
  if (method_ == Method::kDirect || method_ == Method::kFile) return;
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  IVY_ASSERT(epoll >= 0);
  epoll_event event{};
  event.events = EPOLLONESHOT;  // Nothing is watched until wait_writable().
  IVY_ASSERT(epoll_ctl(epoll, EPOLL_CTL_ADD, own_fd_ ? own_fd_.get() : fd_, &event) == 0);
  watcher_.assign(epoll);
}

ConsoleSink::~ConsoleSink() {
  if (writer_) writer_->close(file_);
}

void ConsoleSink::choose_method() {
  max_write_bytes_ = kWriteBytes;
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    failed_ = true;  // The caller closed it (">&-"), so no message is possible.
    return;
  }
  const bool is_terminal = isatty(fd_) != 0;
  has_reader_ = S_ISSOCK(status.st_mode) || S_ISFIFO(status.st_mode);
  if (S_ISSOCK(status.st_mode)) {
    method_ = Method::kSocket;
  } else if (S_ISFIFO(status.st_mode) || is_terminal) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd_);
    own_fd_.reset(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    method_ = own_fd_ ? Method::kNonBlocking : Method::kPolled;
    if (method_ == Method::kPolled)
      max_write_bytes_ = is_terminal ? kSureTerminalBytes : kSurePipeBytes;
  } else if (S_ISREG(status.st_mode)) {
    method_ = Method::kFile;
  }
}

// Starts the thread with the first bytes: starting and joining a thread costs about 0.1 ms.
bool ConsoleSink::open_writer() {
  if (writer_) return true;
  // A copy shares the offset with the caller's other programs, because it belongs to the open file
  // description.
  const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return false;
  auto wake = [this, executor = watcher_.get_executor(), alive = std::weak_ptr<bool>(alive_)] {
    boost::asio::post(executor, [this, alive] {
      if (!alive.expired()) file_moved();
    });
  };
  writer_ = std::make_unique<FileWriter>(kWriteBytes, std::move(wake));
  file_ = writer_->adopt(copy);
  return true;
}

long ConsoleSink::write_some(const char* bytes, std::size_t count) {
  count = std::min(count, max_write_bytes_);
  switch (method_) {
    case Method::kDirect:
    case Method::kFile:
      return write(fd_, bytes, count);
    case Method::kSocket:
      return send(fd_, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    case Method::kNonBlocking:
      return write(own_fd_.get(), bytes, count);
    case Method::kPolled:
      break;
  }
  pollfd entry{fd_, POLLOUT, 0};
  if (poll(&entry, 1, 0) <= 0) {
    errno = EAGAIN;
    return -1;
  }
  return write(fd_, bytes, count);
}

void ConsoleSink::flush() {
  if (method_ == Method::kFile) return queue_for_file();
  if (!waiting_) write_loop();
}

void ConsoleSink::queue_for_file() {
  if (failed_) {
    sent_ = buffer_.size();
    queued_ = 0;
    return trim();
  }
  const std::string_view fresh = std::string_view(buffer_).substr(sent_ + queued_);
  if (fresh.empty()) return;
  if (!open_writer()) {
    method_ = Method::kDirect;
    return flush();
  }
  writer_->write(file_, fresh);
  queued_ += fresh.size();
}

void ConsoleSink::file_moved() {
  int errno_value = 0;
  for (const FileWriter::Done& done : writer_->take_done()) {
    const std::size_t bytes = std::min(done.bytes, queued_);
    sent_ += bytes;
    queued_ -= bytes;
    if (done.errno_value != 0) errno_value = done.errno_value;
  }
  if (errno_value != 0) fail(errno_value);
  queue_for_file();
  trim();
  owner_.sink_moved();
}

void ConsoleSink::write_loop() {
  for (int round = 0; backlog() > 0 && !failed_; ++round) {
    if (round == kMaxWritesAtOnce && method_ != Method::kDirect) {
      wait_writable();
      break;
    }
    const long count = write_some(buffer_.data() + sent_, backlog());
    if (count >= 0) {
      sent_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_writable();
      break;
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
  if (failed_) sent_ = buffer_.size();
  trim();
}

void ConsoleSink::trim() {
  // The buffer is cut once half of it is written, so the bytes that move are never more than the
  // bytes that were written.
  if (sent_ == buffer_.size() || sent_ >= buffer_.size() / 2) {
    dropped_front_ += sent_;
    buffer_.erase(0, sent_);
    sent_ = 0;
  }
}

void ConsoleSink::wait_writable() {
  if (waiting_) return;
  if (method_ == Method::kDirect)
    return fail(EAGAIN);  // A device that is neither file, pipe nor terminal.
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  IVY_ASSERT(epoll_ctl(watcher_.native_handle(), EPOLL_CTL_MOD, own_fd_ ? own_fd_.get() : fd_,
                       &event) == 0);
  waiting_ = true;
  watcher_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<bool>(alive_)](const boost::system::error_code& error) {
        if (alive.expired()) return;
        waiting_ = false;
        if (error) return;
        write_loop();
        owner_.sink_moved();
      });
}

void ConsoleSink::check_reader() {
  pollfd entry{fd_, 0, 0};
  if (has_reader_ && poll(&entry, 1, 0) == 1 && (entry.revents & (POLLERR | POLLHUP)) != 0)
    fail(EPIPE);
}

void ConsoleSink::fail(int errno_value) {
  if (failed_) return;
  failed_ = true;
  boost::asio::post(watcher_.get_executor(),
                    [this, errno_value, alive = std::weak_ptr<bool>(alive_)] {
                      if (!alive.expired()) owner_.sink_failed(errno_value);
                    });
}

}  // namespace ivy
