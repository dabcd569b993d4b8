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
// Bytes that a pipe accepts without blocking once poll(2) has reported it as writable.
constexpr std::size_t kPolledPipeBytes = PIPE_BUF;
// Bytes that a terminal accepts without blocking once poll(2) has reported it as writable
// (WAKEUP_CHARS of the kernel's line discipline).
constexpr std::size_t kPolledTerminalBytes = 256;
// Writes after which the loop gets a turn.
constexpr int kMaxWritesAtOnce = 16;

}  // namespace

ConsoleSink::ConsoleSink(boost::asio::io_context& loop, int fd, ConsoleSinkEvents& owner)
    : fd_(fd), owner_(owner), epoll_(loop) {
  choose_method();
  if (method_ != Method::kDirect && method_ != Method::kFile) open_epoll();
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
      max_write_bytes_ = is_terminal ? kPolledTerminalBytes : kPolledPipeBytes;
  } else if (S_ISREG(status.st_mode)) {
    method_ = Method::kFile;
  }
}

void ConsoleSink::open_epoll() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  IVY_ASSERT(epoll >= 0);
  epoll_event event{};
  event.events = EPOLLONESHOT;  // Nothing is watched until wait_writable().
  const int added = epoll_ctl(epoll, EPOLL_CTL_ADD, watched_fd(), &event);
  IVY_ASSERT(added == 0);
  epoll_.assign(epoll);
}

// Starts the thread with the first bytes: starting and joining a thread costs about 0.1 ms.
bool ConsoleSink::open_writer() {
  if (writer_) return true;
  // A copy shares the offset with the caller's other programs, because it belongs to the open file
  // description.
  const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return false;
  auto wake = [this, executor = epoll_.get_executor(), alive = std::weak_ptr<bool>(alive_)] {
    boost::asio::post(executor, [this, alive] {
      if (!alive.expired()) writer_progressed();
    });
  };
  writer_ = std::make_unique<FileWriter>(kWriteBytes, std::move(wake));
  file_ = writer_->adopt(copy);
  return true;
}

long ConsoleSink::write_some(const char* bytes, std::size_t count) {
  IVY_ASSERT(method_ != Method::kFile);
  count = std::min(count, max_write_bytes_);
  if (method_ == Method::kSocket) return send(fd_, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (method_ == Method::kNonBlocking) return write(own_fd_.get(), bytes, count);
  if (method_ == Method::kPolled) {
    pollfd entry{fd_, POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) {
      errno = EAGAIN;
      return -1;
    }
  }
  return write(fd_, bytes, count);
}

void ConsoleSink::flush() {
  if (failed_) return drop();
  if (backlog() == 0) return;
  if (method_ == Method::kFile && !open_writer()) method_ = Method::kDirect;
  if (method_ == Method::kFile)
    queue_for_writer();
  else if (!waiting_)
    write_loop();
}

void ConsoleSink::queue_for_writer() {
  const std::string_view fresh = std::string_view(buffer_).substr(sent_ + queued_);
  writer_->write(file_, fresh);
  queued_ += fresh.size();
}

void ConsoleSink::writer_progressed() {
  for (const FileWriter::Done& done : writer_->take_done()) {
    const std::size_t bytes = std::min(done.bytes, queued_);
    sent_ += bytes;
    queued_ -= bytes;
    if (done.errno_value != 0) fail(done.errno_value);
  }
  trim();
  flush();
  owner_.sink_progressed();
}

void ConsoleSink::write_loop() {
  for (int round = 0; backlog() > 0; ++round) {
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
  trim();
}

void ConsoleSink::wait_writable() {
  if (waiting_) return;
  // A device that is neither file, pipe nor terminal has no epoll set, and should never wait.
  if (method_ == Method::kDirect) return fail(EAGAIN);
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLONESHOT;
  const int changed = epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, watched_fd(), &event);
  IVY_ASSERT(changed == 0);
  waiting_ = true;
  epoll_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<bool>(alive_)](const boost::system::error_code& error) {
        if (alive.expired()) return;
        waiting_ = false;
        if (error) return;
        flush();
        owner_.sink_progressed();
      });
}

void ConsoleSink::trim() {
  // The buffer is cut once half of it is written, so the bytes that move are never more than the
  // bytes that were written.
  if (sent_ < buffer_.size() / 2) return;
  dropped_front_ += sent_;
  buffer_.erase(0, sent_);
  sent_ = 0;
}

void ConsoleSink::drop() {
  sent_ = buffer_.size();
  queued_ = 0;
  trim();
}

void ConsoleSink::check_reader() {
  pollfd entry{fd_, 0, 0};
  if (has_reader_ && poll(&entry, 1, 0) == 1 && (entry.revents & (POLLERR | POLLHUP)) != 0)
    fail(EPIPE);
}

void ConsoleSink::fail(int errno_value) {
  if (failed_) return;
  failed_ = true;
  drop();
  boost::asio::post(epoll_.get_executor(),
                    [this, errno_value, alive = std::weak_ptr<bool>(alive_)] {
                      if (!alive.expired()) owner_.sink_failed(errno_value);
                    });
}

}  // namespace ivy
