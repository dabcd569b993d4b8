// SPDX-License-Identifier: Apache-2.0
// run_relay() is the sequence: read the first line (read_first_line()), connect to the supervisor
// or start a warden (open_job()), and copy (copy_both_directions()). Copier copies with one
// CopyDirection for each direction. open_job() is also used by dial_transport.cc.
#include "agent/node/roles/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>

#include "agent/node/roles/warden.h"
#include "agent/node/spawn/job_directory.h"
#include "proto/contract/core_limit.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// One direction of the copying. Holds at most one buffer of bytes that have been read but not
// written.
class CopyDirection {
 public:
  CopyDirection(int from, int to, std::string pending)
      : from_(from), to_(to), buffer_(std::move(pending)) {
    begin_ = 0;
    end_ = buffer_.size();
    buffer_.resize(std::max(buffer_.size(), kRelayBufferBytes));
  }
  bool is_empty() const { return begin_ == end_; }
  bool input_ended() const { return input_ended_; }
  bool output_broken() const { return output_broken_; }
  bool wants_to_read() const { return !input_ended_ && is_empty(); }
  bool wants_to_write() const { return !output_broken_ && !is_empty(); }
  // The reader has gone: further bytes are read and dropped, so that the writer does not block.
  void break_output() {
    output_broken_ = true;
    begin_ = end_ = 0;
  }
  void end_input() { input_ended_ = true; }

  // Returns true if bytes were read.
  bool read_some() {
    const ssize_t count = read(from_, buffer_.data(), buffer_.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
      input_ended_ = true;
      return false;
    }
    begin_ = 0;
    end_ = output_broken_ ? 0 : static_cast<std::size_t>(count);
    return true;
  }

  // Returns true if bytes were written.
  bool write_some() {
    const ssize_t count = write(to_, buffer_.data() + begin_, end_ - begin_);
    if (count < 0 && errno != EAGAIN && errno != EINTR) break_output();
    if (count > 0) begin_ += static_cast<std::size_t>(count);
    return count > 0;
  }

 private:
  const int from_;
  const int to_;
  std::string buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool input_ended_ = false;
  bool output_broken_ = false;
};

class Copier {
 public:
  Copier(int input_fd, int output_fd, int socket_fd, std::string pending)
      : input_fd_(input_fd),
        output_fd_(output_fd),
        socket_fd_(socket_fd),
        down_(input_fd, socket_fd, std::move(pending)),
        up_(socket_fd, output_fd, {}) {}

  void run() {
    while (!is_done()) {
      half_close_when_due();
      wait_and_move();
    }
  }

 private:
  bool is_done() const {
    // The supervisor has closed the socket or cannot be written to; its last bytes have been passed
    // on.
    if (up_.input_ended()) return up_.is_empty() || up_.output_broken();
    return deadline_ && Clock::now() >= *deadline_;
  }

  void half_close_when_due() {
    if (half_closed_ || !down_.input_ended() || !down_.is_empty()) return;
    half_closed_ = true;
    shutdown(socket_fd_, SHUT_WR);
  }

  void wait_and_move() {
    const auto events = [](bool wanted, int event) {
      return static_cast<short>(wanted ? event : 0);
    };
    std::array<pollfd, 3> fds{};
    fds[0] = {input_fd_, events(down_.wants_to_read(), POLLIN), 0};
    fds[1] = {output_fd_, events(up_.wants_to_write(), POLLOUT), 0};
    fds[2] = {socket_fd_, events(up_.wants_to_read(), POLLIN), 0};
    fds[2].events |= events(down_.wants_to_write(), POLLOUT);
    // poll() would return immediately every time for a descriptor at its end.
    if (down_.input_ended() || !down_.wants_to_read()) fds[0].fd = -1;
    if (up_.output_broken()) fds[1].fd = -1;
    if (fds[2].events == 0) fds[2].fd = -1;
    const int timeout = deadline_ ? milliseconds_until(*deadline_) : -1;
    if (poll(fds.data(), fds.size(), timeout) <= 0) return;
    move(fds);
  }

  void move(const std::array<pollfd, 3>& fds) {
    const bool output_was_broken = up_.output_broken();
    const bool input_had_ended = down_.input_ended();
    if ((fds[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) up_.break_output();
    bool moved = false;
    if (fds[2].revents != 0 && up_.wants_to_read()) moved |= up_.read_some();
    if (up_.wants_to_write()) moved |= up_.write_some();
    if (fds[0].revents != 0 && down_.wants_to_read()) moved |= down_.read_some();
    if (down_.wants_to_write()) moved |= down_.write_some();
    // The supervisor no longer reads, but may still send.
    if (down_.output_broken()) down_.end_input();

    if (down_.input_ended()) {
      if (moved || !input_had_ended) deadline_ = Clock::now() + milliseconds(kHalfCloseSilenceMs);
    } else if (up_.output_broken() && !output_was_broken) {
      // If standard input ends as well within this time, the session has died, which is reported by
      // a half-close.
      deadline_ = Clock::now() + milliseconds(kBreakTogetherMs);
    }
  }

  const int input_fd_;
  const int output_fd_;
  const int socket_fd_;
  CopyDirection down_;
  CopyDirection up_;
  bool half_closed_ = false;
  std::optional<Clock::time_point> deadline_;
};

struct FirstLine {
  std::string line;
  std::string rest;  // Bytes after the line, which belong to the supervisor.
};

Result<FirstLine> read_first_line(int fd) {
  const Clock::time_point deadline = Clock::now() + milliseconds(kOpenLineTimeoutMs);
  std::string text;
  while (true) {
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, milliseconds_until(deadline)) == 0) {
      return Error{Code::kDeadlineExceeded, "received no IVYOPEN line within 20 s"};
    }
    std::array<char, 4096> buffer;
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return Error{Code::kCancelled, "input ended before the IVYOPEN line"};
    text.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t newline = text.find('\n');
    if (std::min(newline, text.size()) >= kOpenLineMaxBytes) {
      return Error{Code::kInvalidArgument, "the first line is longer than an IVYOPEN line"};
    }
    if (newline != std::string::npos) {
      return FirstLine{text.substr(0, newline), text.substr(newline + 1)};
    }
  }
}

[[noreturn]] void become_warden(const OpenLine& request, int link_fd) {
  setsid();
  // Move it above the descriptor number that the warden uses, whatever its number was before.
  constexpr int kWardenLinkFd = 3;
  const int high = fcntl(link_fd, F_DUPFD_CLOEXEC, kWardenLinkFd + 1);
  if (high < 0 || dup2(high, kWardenLinkFd) < 0) _exit(kRelayFailed);
  const std::string host = std::to_string(request.host);
  const std::string task = std::to_string(request.step_task);
  const std::array<const char*, 13> arguments = {
      "ivy-node", "warden", "--job", request.job_id.c_str(), "--host", host.c_str(),
      "--transport-fd", "3", "--transport", "relay",
      // The list ends at the first null pointer.
      request.step_task != 0 ? "--step" : nullptr, task.c_str(), nullptr};
  const UsersCoreLimit inherited;
  execv("/proc/self/exe", const_cast<char* const*>(arguments.data()));
  const Error error = errno_error(Code::kInternal, "start the warden (/proc/self/exe)", errno);
  const std::string line = kFailurePrefix + error.message + "\n";
  send(kWardenLinkFd, line.data(), line.size(), MSG_NOSIGNAL);
  _exit(kRelayFailed);
}

Result<int> start_warden(const OpenLine& request) {
  DescriptorPair ends = make_stream_pair();
  if (!ends) return errno_error(Code::kUnavailable, "socketpair", errno);
  const pid_t pid = fork();
  if (pid == 0) become_warden(request, ends.second.get());
  if (pid > 0) return ends.first.release();
  return errno_error(Code::kUnavailable, "fork the warden", errno);
}

Result<int> connect_to_job(const OpenLine& request) {
  const JobDirectory directory = IVY_TRY(find_job_directory(request.job_id, request.host));
  return connect_to_command_socket(directory);
}

int fail(const std::string& text, int exit_code) {
  std::string line = kFailurePrefix + text;
  std::ranges::replace(line, '\n', ' ');
  line += '\n';
  // One line fits into a pipe; if there is no reader, the message is lost.
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, line.data(), line.size());
  return exit_code;
}

}  // namespace

Result<OpenLine> parse_open_line(std::string_view line) {
  const Error malformed{Code::kInvalidArgument, "the first line is not an IVYOPEN line"};
  constexpr std::string_view kMagic = "IVYOPEN 1 ";
  OpenLine request;
  if (!line.starts_with(kMagic)) return malformed;
  line.remove_prefix(kMagic.size());
  if (line.starts_with("new ")) {
    line.remove_prefix(4);
  } else if (line.starts_with("reattach ")) {
    request.verb = OpenVerb::kReattach;
    line.remove_prefix(9);
  } else {
    return malformed;
  }
  request.job_id = line.substr(0, kJobIdDigits);
  if (!is_job_id(request.job_id) || line.size() < kJobIdDigits + 2 || line[kJobIdDigits] != ' ') {
    return malformed;
  }
  line.remove_prefix(kJobIdDigits + 1);
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), request.host);
  if (parsed.ec != std::errc() || parsed.ptr != line.data() + line.size()) return malformed;
  return request;
}

// A second `new` finds the job that the first one started.
Result<int> open_job(const OpenLine& request) {
  Result<int> connected = connect_to_job(request);
  if (connected.ok() || request.verb == OpenVerb::kReattach) return connected;
  if (connected.error().code != Code::kNotFound) return connected;
  return start_warden(request);
}

int copy_both_directions(int input_fd, int output_fd, int socket_fd, std::string pending) {
  for (const int fd : {input_fd, output_fd, socket_fd}) set_nonblocking(fd);
  Copier(input_fd, output_fd, socket_fd, std::move(pending)).run();
  return 0;
}

int run_relay() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);   // Closed descriptors show the end of the session.
  signal(SIGCHLD, SIG_IGN);  // A warden that exits before us leaves no zombie.
  const Result<FirstLine> first = read_first_line(STDIN_FILENO);
  if (!first.ok()) return fail(first.error().message, kRelayFailed);
  const Result<OpenLine> request = parse_open_line(first->line);
  if (!request.ok()) return fail(request.error().message, kRelayFailed);
  const Result<int> socket_fd = open_job(*request);
  if (!socket_fd.ok()) {
    const bool is_missing = socket_fd.error().code == Code::kNotFound;
    if (is_missing) return fail("no-such-job", kRelayNoSuchJob);
    return fail(socket_fd.error().message, kRelayFailed);
  }
  return copy_both_directions(STDIN_FILENO, STDOUT_FILENO, *socket_fd, first->rest);
}

}  // namespace ivy
