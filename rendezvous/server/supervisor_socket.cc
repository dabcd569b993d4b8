// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/supervisor_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <cstdio>

#include "proto/contract/text.h"

namespace ivy::store {
namespace {

// A longer line is an error. Today's orders are much shorter; the rest is reserved for future ones.
constexpr std::size_t kMaxLine = 4096;

}  // namespace

void SupervisorSocket::start() {
  if (fd_ < 0) return;
  socket_.assign(fd_);
  wait();
}

void SupervisorSocket::send_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = '\v';
  }
  text.push_back('\n');
  if (fd_ < 0) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  } else {
    send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void SupervisorSocket::acknowledge(std::uint32_t generation) {
  const std::string line = "generation " + std::to_string(generation) + "\n";
  const ssize_t sent = send(fd_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0 || (errno != EAGAIN && errno != EINTR)) return;
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                     [this, generation](const boost::system::error_code& error) {
                       if (!error) acknowledge(generation);
                     });
}

void SupervisorSocket::wait() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (error || !read()) return owner_.orders_ended();
                       wait();
                     });
}

bool SupervisorSocket::read() {
  std::array<char, kMaxLine> bytes{};
  const ssize_t count = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  line_.append(bytes.data(), static_cast<std::size_t>(count));
  for (std::size_t end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
    const std::string line = line_.substr(0, end);
    line_.erase(0, end + 1);
    if (!execute(line)) return false;
  }
  return line_.size() <= kMaxLine;
}

bool SupervisorSocket::execute(std::string_view line) {
  constexpr std::string_view kGeneration = "generation ";
  constexpr std::string_view kPut = "put ";
  constexpr std::string_view kPeer = "peer ";
  if (line.starts_with(kPeer)) owner_.add_peer(std::string(line.substr(kPeer.size())));
  if (line == "complete") owner_.all_joined();
  if (line.starts_with(kPut)) {
    const std::string_view words = line.substr(kPut.size());
    const std::size_t blank = std::min(words.find(' '), words.size());
    owner_.put(std::string(words.substr(0, blank)),
               std::string(words.substr(std::min(blank + 1, words.size()))));
  }
  if (!line.starts_with(kGeneration)) return line != "quit";
  const auto generation = to_number<std::uint32_t>(line.substr(kGeneration.size()));
  // A supervisor waits for the answer to an order; closing the socket is the answer to a malformed
  // one.
  if (!generation) return false;
  owner_.begin_generation(*generation);
  return true;
}

}  // namespace ivy::store
