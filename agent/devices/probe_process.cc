// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/probe_process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

constexpr std::size_t kPieceBytes = 16u << 10;
constexpr std::string_view kEnd = "\nivy end\n";

// Runs in the child of fork(), which leaves the C library's locks usable.
[[noreturn]] void become_probe(std::vector<std::string> arguments, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int signal : {SIGINT, SIGHUP, SIGCHLD, SIGPIPE, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Also capture the dynamic linker's messages about a library that is too old.
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  const std::vector<char*> pointers = exec_array(arguments);
  execv(pointers.front(), pointers.data());
  dprintf(STDOUT_FILENO, "cannot be executed: %s\n",
          errno_error(Code::kUnavailable, "", errno).message.c_str());
  _exit(1);
}

}  // namespace

ProbeProcess::ProbeProcess(boost::asio::io_context& loop)
    : output_(loop), timer_(loop), buffer_(kPieceBytes, '\0') {}

ProbeProcess::~ProbeProcess() { stop(); }

void ProbeProcess::start(std::vector<std::string> arguments, std::chrono::milliseconds limit,
                         Done done) {
  stop();
  ++attempt_;
  done_ = std::move(done);
  text_.clear();
  const auto fail = [this](const char* step) {
    const Error error = errno_error(Code::kUnavailable, step, errno);
    boost::asio::post(output_.get_executor(), [this, error, attempt = attempt_] {
      if (attempt == attempt_) finish(error);
    });
  };
  DescriptorPair ends = make_pipe();
  if (!ends) return fail("pipe for ivy-probe");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_probe(std::move(arguments), ends.second.get(), parent);
  if (child < 0) return fail("fork ivy-probe");
  // Open the pidfd before the child can be reaped, while the pid is still its own.
  pidfd_.reset(open_pidfd(child));
  output_.assign(ends.first.release());
  timer_.expires_after(limit);
  timer_.async_wait([this, limit, attempt = attempt_](const boost::system::error_code& failed) {
    if (failed || attempt != attempt_) return;
    finish(Error{Code::kDeadlineExceeded,
                 "ivy-probe did not answer within " + std::to_string(limit.count()) + " ms"});
  });
  read_more();
}

void ProbeProcess::read_more() {
  output_.async_read_some(
      boost::asio::buffer(buffer_),
      [this, attempt = attempt_](const boost::system::error_code& error, std::size_t bytes) {
        if (attempt != attempt_ || error == boost::asio::error::operation_aborted) return;
        text_.append(buffer_, 0, bytes);
        const bool is_complete = text_.ends_with(kEnd);
        if (error || is_complete || text_.size() > kMaxProbeBytes)
          return finish(parse_probe_text(text_));
        read_more();
      });
}

void ProbeProcess::finish(const Result<ProbeAnswer>& answer) {
  stop();
  ++attempt_;
  if (const Done done = std::exchange(done_, nullptr)) done(answer);
}

// The supervisor's sweep reaps the probe. A probe that hangs in a driver exits when the driver lets
// go.
void ProbeProcess::stop() {
  timer_.cancel();
  boost::system::error_code ignored;
  if (output_.is_open()) output_.close(ignored);
  if (!pidfd_) return;
  syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  pidfd_.reset();
}

}  // namespace ivy
