// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/tcp/socket_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "proto/os/not_inherited.h"

namespace ivy::comm {
namespace {

class SocketSink final : public ByteSink {
 public:
  explicit SocketSink(int socket) : socket_(socket) {}
  ~SocketSink() override { not_inherited::close(socket_); }
  std::size_t write_some(const void* bytes, std::size_t count) override {
    const ssize_t sent = send(socket_, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno != EAGAIN && errno != EINTR) state_ = StreamState::kBroken;
    return 0;
  }
  StreamState state() const override { return state_; }
  int descriptor() const override { return socket_; }

 private:
  const int socket_;
  StreamState state_ = StreamState::kOpen;
};

class SocketSource final : public ByteSource {
 public:
  explicit SocketSource(int socket) : socket_(socket) {}
  ~SocketSource() override { not_inherited::close(socket_); }
  std::size_t read_some(void* bytes, std::size_t count) override {
    if (count == 0) return 0;
    const ssize_t got = recv(socket_, bytes, count, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) state_ = StreamState::kBroken;
    return 0;
  }
  StreamState state() const override { return state_; }
  int descriptor() const override { return socket_; }

 private:
  const int socket_;
  StreamState state_ = StreamState::kOpen;
};

}  // namespace

std::unique_ptr<ByteSink> make_socket_sink(int socket) {
  return std::make_unique<SocketSink>(socket);
}
std::unique_ptr<ByteSource> make_socket_source(int socket) {
  return std::make_unique<SocketSource>(socket);
}

}  // namespace ivy::comm
