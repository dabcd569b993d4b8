// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/stdin_feed.h"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include "proto/os/descriptor.h"

namespace ivy {
namespace {

constexpr std::size_t kInputBytes = 32u << 10;
// How often a background job checks whether it has come to the foreground.
constexpr std::chrono::milliseconds kForegroundPoll{300};

// True if standard input is a pipe, a socket, a file or a terminal, and not /dev/null.
bool should_forward() {
  struct stat status {};
  if (fstat(STDIN_FILENO, &status) != 0) return false;
  if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || S_ISREG(status.st_mode)) return true;
  return isatty(STDIN_FILENO) != 0;
}

}  // namespace

StdinFeed::StdinFeed(JobContext& job) : job_(job), descriptor_(job.loop), timer_(job.loop) {}

void StdinFeed::begin() {
  const InputChoice& choice = job_.options.input;
  if (choice.kind == InputChoice::Kind::kAll) {
    for (const PlannedHost& planned : job_.plan.hosts) receivers_.push_back(planned.host_index);
  } else if (const auto rank = static_cast<std::size_t>(choice.rank); rank < job_.workers.size()) {
    receivers_.push_back(job_.workers[rank].host);
  }
  if (choice.kind == InputChoice::Kind::kNone || !should_forward()) return send("");
  start();
}

void StdinFeed::send(const std::string& bytes) {
  for (const std::size_t host : receivers_)
    if (!job_.hosts[host].lost) job_.hosts[host].session->send_input(bytes);
}

std::size_t StdinFeed::window() const {
  std::uint64_t window = std::numeric_limits<std::uint64_t>::max();
  for (const std::size_t host : receivers_)
    if (!job_.hosts[host].lost) window = std::min(window, job_.hosts[host].session->input_window());
  return static_cast<std::size_t>(window);
}

void StdinFeed::start() {
  struct stat status {};
  if (fstat(STDIN_FILENO, &status) != 0) return send("");
  is_file_ = S_ISREG(status.st_mode);
  if (is_file_) file_start_ = lseek(STDIN_FILENO, 0, SEEK_CUR);
  is_pipe_ = S_ISFIFO(status.st_mode);
  is_terminal_ = isatty(STDIN_FILENO) != 0;
  ended_ = false;
  if (!is_file_) {
    // Asio makes a descriptor that it waits for non-blocking, and the caller's shell shares that
    // flag. It therefore waits for an epoll descriptor that watches standard input.
    Descriptor watcher(epoll_create1(EPOLL_CLOEXEC));
    epoll_event readable{};
    readable.events = EPOLLIN;
    if (!watcher || epoll_ctl(watcher.get(), EPOLL_CTL_ADD, STDIN_FILENO, &readable) != 0) {
      ended_ = true;
      return send("");
    }
    descriptor_.assign(watcher.release());
  }
  resume();
}

void StdinFeed::resume() {
  if (!ended_ && !waiting_ && window() > 0) wait();
}

void StdinFeed::stop() {
  ended_ = true;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  timer_.cancel();
}

void StdinFeed::restore_offset(std::uint64_t taken_bytes) {
  if (file_start_ < 0) return;
  const off_t wanted = file_start_ + static_cast<off_t>(taken_bytes);
  if (lseek(STDIN_FILENO, 0, SEEK_CUR) > wanted) lseek(STDIN_FILENO, wanted, SEEK_SET);
}

bool StdinFeed::may_read_terminal() const { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

void StdinFeed::wait() {
  waiting_ = true;
  auto ready = [this](const boost::system::error_code& error) {
    waiting_ = false;
    if (!error && !ended_) read_some();
  };
  if (is_file_ || (is_terminal_ && !may_read_terminal())) {
    timer_.expires_after(is_file_ ? std::chrono::milliseconds(0) : kForegroundPoll);
    timer_.async_wait(ready);
    return;
  }
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read, ready);
}

void StdinFeed::read_some() {
  if (is_terminal_ && !may_read_terminal()) return wait();
  const std::size_t max_bytes = std::min(window(), kInputBytes);
  if (max_bytes == 0) return;
  std::string bytes(max_bytes, '\0');
  const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return wait();
  if (count <= 0) {
    stop();
    return send("");
  }
  bytes.resize(static_cast<std::size_t>(count));
  read_bytes_ += bytes.size();
  send(bytes);
  resume();
}

}  // namespace ivy
