// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/host_key_question.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "proto/os/descriptor.h"

namespace ivy {

bool HostKeyQuestion::can_prompt() {
  return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0 &&
         tcgetpgrp(STDIN_FILENO) == getpgrp();
}

void HostKeyQuestion::prompt(const Subject& subject, std::function<void(bool trusted)> answered) {
  answered_ = std::move(answered);
  fingerprint_ = subject.fingerprint;
  Descriptor terminal(open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  boost::system::error_code error;
  if (terminal) terminal_.assign(terminal.get(), error);
  if (!terminal || error) {
    boost::asio::post(terminal_.get_executor(), [self = shared_from_this()] {
      if (self->answered_) std::exchange(self->answered_, {})(false);
    });
    return;
  }
  terminal.release();
  print("The authenticity of host '" + subject.host + " (" + subject.address +
        ")' can't be established.\n" + subject.type + " key fingerprint is " + subject.fingerprint +
        ".\nAre you sure you want to continue connecting (yes/no/[fingerprint])? ");
  read();
}

void HostKeyQuestion::cancel() {
  answered_ = {};
  boost::system::error_code ignored;
  terminal_.close(ignored);
}

void HostKeyQuestion::read() {
  terminal_.async_read_some(
      boost::asio::buffer(buffer_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t count) {
        if (!self->answered_) return;
        if (error) return self->answer("no");
        self->line_.append(self->buffer_.data(), count);
        const std::size_t end = self->line_.find('\n');
        if (end == std::string::npos) return self->read();
        const std::string line = self->line_.substr(0, end);
        self->line_.clear();
        self->answer(line);
      });
}

void HostKeyQuestion::answer(const std::string& line) {
  const bool yes = line == "yes" || line == fingerprint_;
  if (!yes && line != "no") {
    print("Please type 'yes', 'no' or the fingerprint: ");
    return read();
  }
  const auto answered = std::move(answered_);
  cancel();
  answered(yes);
}

void HostKeyQuestion::print(const std::string& text) {
  // A few hundred bytes to a terminal that a user is reading: a single write takes them.
  if (::write(terminal_.native_handle(), text.data(), text.size()) < 0) line_.clear();
}

}  // namespace ivy
