// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/frame_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace ivy::store {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr std::size_t kKeptBytes = 64u << 10;  // Larger send buffers are freed when empty.

}  // namespace

std::uint64_t FrameSocket::queue(FrameHead head, std::string_view payload) {
  const std::uint64_t begin = sent_bytes_ + unsent_.size();
  append_frame(unsent_, head, payload);
  return begin;
}

void FrameSocket::write_some() {
  std::size_t sent = 0;
  while (sent < unsent_.size()) {
    const ssize_t count = send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) broken_ = std::strerror(errno);
    break;
  }
  sent_bytes_ += sent;
  if (sent < unsent_.size()) {
    unsent_.erase(0, sent);
  } else if (unsent_.capacity() > kKeptBytes) {
    unsent_ = {};
  } else {
    unsent_.clear();
  }
}

void FrameSocket::read_some() {
  std::array<char, kReadBytes> buffer;
  const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    broken_ = count == 0 ? "it closed the connection" : std::strerror(errno);
    return;
  }
  decoder_.feed({buffer.data(), static_cast<std::size_t>(count)});
}

std::optional<WireFrame> FrameSocket::next() {
  if (!broken_.empty()) return std::nullopt;
  Result<std::optional<WireFrame>> frame = decoder_.next();
  if (frame.ok()) return std::move(*frame);
  broken_ = frame.error().message;
  return std::nullopt;
}

void FrameSocket::notice_end() {
  char byte = 0;
  const ssize_t count = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
    broken_ = "it closed the connection";
}

void FrameSocket::shut_down() const {
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace ivy::store
