// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_tunnel.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <string_view>
#include <thread>
#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/socket_options.h"

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

// Largest TLS record.
constexpr std::size_t kPieceBytes = 16u << 10;
// Bytes that are given to gRPC at a time, because each time wakes one of its threads.
constexpr std::size_t kBatchBytes = 4 * kPieceBytes;
// Pieces after which other connections get their turn.
constexpr int kPiecesPerTurn = 16;
// The kernel ends a connection that does not acknowledge data for this long: as long as the answer
// to a keepalive may take (agent_channel.cc).
constexpr unsigned kUserTimeoutMs = 120'000;
constexpr char kNotConnected[] = "failed to connect to all addresses; last error: ";

void set_socket_options(int socket) {
  disable_nagle(socket);
  set_user_timeout(socket, kUserTimeoutMs);
}

bool has_http2(SSL* connection) {
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(connection, &chosen, &size);
  return std::string_view(reinterpret_cast<const char*>(chosen), size) == "h2";
}

}  // namespace

AgentTunnel::AgentTunnel(asio::io_context& loop, std::shared_ptr<AgentTls> tls,
                         std::string host_name)
    : tls_(std::move(tls)), host_name_(std::move(host_name)), outer_(loop), inner_(loop) {}

Result<int> AgentTunnel::start(const std::string& address, std::uint16_t port) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return errno_error(Code::kUnavailable, "socketpair", errno);
  }
  Descriptor own_end(ends[0]), grpc_end(ends[1]);
  error_code error;
  inner_.assign(own_end.get(), error);
  if (error) {
    return Error{Code::kResourceExhausted, "watch the tunnel: " + error.message(), ""};
  }
  own_end.release();
  const tcp::endpoint agent(asio::ip::make_address(address, error), port);
  asio::post(inner_.get_executor(), [self = shared_from_this(), agent, error] {
    if (error) return self->fail(kNotConnected + ("connect: " + error.message()));
    self->connect(agent);
  });
  return grpc_end.release();
}

void AgentTunnel::connect(const tcp::endpoint& agent) {
  outer_.async_connect(agent, [self = shared_from_this()](const error_code& failed) {
    if (self->is_over_) return;
    if (failed) return self->fail(kNotConnected + ("connect: " + failed.message()));
    const int socket = self->outer_.native_handle();
    set_socket_options(socket);
    self->outer_.native_non_blocking(true);
    self->connection_ = self->tls_->connect(socket, self->host_name_, self->state_.verdict);
    self->do_handshake();
  });
}

template <class Socket>
void AgentTunnel::when(Socket& socket, typename Socket::wait_type what, Step step) {
  socket.async_wait(what, [self = shared_from_this(), step](const error_code& error) {
    if (!error && !self->is_over_) (self.get()->*step)();
  });
}

void AgentTunnel::do_handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(connection_.get());
  shared_state_->update(state_);  // The result of the verification so far.
  if (result == 1) {
    if (!has_http2(connection_.get())) return fail("Handshake failed: it does not speak HTTP/2");
    // gRPC speaks first, so its bytes are sent before the agent's are read.
    pump_down();
    if (!is_over_) pump_up();
    return;
  }
  switch (SSL_get_error(connection_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return when(outer_, tcp::socket::wait_read, &AgentTunnel::do_handshake);
    case SSL_ERROR_WANT_WRITE:
      return when(outer_, tcp::socket::wait_write, &AgentTunnel::do_handshake);
    default:
      return outer_ended(result);
  }
}

void AgentTunnel::pump_down() {
  std::array<char, kPieceBytes> piece;
  for (int turn = 0; turn < kPiecesPerTurn; ++turn) {
    if (!down_.empty() && !write_outer()) return;
    const ssize_t count = recv(inner_.native_handle(), piece.data(), piece.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      return when(inner_, asio::posix::stream_descriptor::wait_read, &AgentTunnel::pump_down);
    }
    if (count <= 0) return end();
    down_.assign(piece.data(), static_cast<std::size_t>(count));
  }
  when(inner_, asio::posix::stream_descriptor::wait_read, &AgentTunnel::pump_down);
}

// Returns true when all bytes were written. False: the socket is full, or broken.
bool AgentTunnel::write_outer() {
  while (!down_.empty()) {
    ERR_clear_error();
    const int count = SSL_write(connection_.get(), down_.data(), static_cast<int>(down_.size()));
    if (count > 0) {
      down_.erase(0, static_cast<std::size_t>(count));
      continue;
    }
    if (SSL_get_error(connection_.get(), count) == SSL_ERROR_WANT_WRITE) {
      when(outer_, tcp::socket::wait_write, &AgentTunnel::pump_down);
    }
    // If the connection is broken, pump_up() first reads what the agent had sent, and then finds
    // the end.
    return false;
  }
  return true;
}

void AgentTunnel::pump_up() {
  std::array<char, kBatchBytes> batch;
  for (int turn = 0; turn < kPiecesPerTurn; ++turn) {
    if (!up_.empty() && !write_inner()) return;
    std::size_t size = 0;
    int count = 1;
    while (size < batch.size() && count > 0) {
      ERR_clear_error();
      count =
          SSL_read(connection_.get(), batch.data() + size, static_cast<int>(batch.size() - size));
      if (count > 0) size += static_cast<std::size_t>(count);
    }
    if (size > 0) {
      if (!std::exchange(state_.is_connected, true)) shared_state_->update(state_);
      up_.assign(batch.data(), size);
      // The reason for the end of these reads is found in the next round, after the bytes.
      continue;
    }
    if (SSL_get_error(connection_.get(), count) == SSL_ERROR_WANT_READ) {
      return when(outer_, tcp::socket::wait_read, &AgentTunnel::pump_up);
    }
    return outer_ended(count);
  }
  // Bytes that OpenSSL has read ahead do not make the socket readable.
  asio::post(inner_.get_executor(), [self = shared_from_this()] {
    if (!self->is_over_) self->pump_up();
  });
}

bool AgentTunnel::write_inner() {
  while (!up_.empty()) {
    const ssize_t count = send(inner_.native_handle(), up_.data(), up_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      when(inner_, asio::posix::stream_descriptor::wait_write, &AgentTunnel::pump_up);
      return false;
    }
    if (count < 0) {
      end();
      return false;
    }
    up_.erase(0, static_cast<std::size_t>(count));
  }
  // Idle connections should not keep large buffers: there may be hundreds of them.
  if (up_.capacity() > kPieceBytes) up_ = std::string();
  return true;
}

void AgentTunnel::outer_ended(int result) {
  const int error = errno;
  const int kind = SSL_get_error(connection_.get(), result);
  const std::string reason = take_tls_error();
  if (kind == SSL_ERROR_SSL) return fail("Handshake failed: " + reason);
  if (kind == SSL_ERROR_SYSCALL && error != 0) {
    return fail("Socket closed: " + error_code(error, boost::system::system_category()).message());
  }
  fail("Socket closed");
}

// Keeps the reason only if there was no connection: gRPC reports how an established connection
// ends.
void AgentTunnel::fail(const std::string& why) {
  if (!state_.is_connected && state_.failure.empty()) {
    state_.failure = why;
    shared_state_->update(state_);
  }
  end();
}

void AgentTunnel::end() {
  if (std::exchange(is_over_, true)) return;
  if (connection_) {
    ERR_clear_error();
    SSL_shutdown(connection_.get());
    ERR_clear_error();
    connection_.reset();
  }
  error_code ignored;
  outer_.close(ignored);
  inner_.close(ignored);
}

struct AgentTunnels::Worker {
  asio::io_context loop{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{loop.get_executor()};
  std::thread thread{[this] { loop.run(); }};

  ~Worker() {
    loop.stop();
    thread.join();
  }
};

AgentTunnels::AgentTunnels(std::shared_ptr<AgentTls> tls)
    : tls_(std::move(tls)),
      threads_(std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads)) {}

AgentTunnels::~AgentTunnels() = default;

asio::io_context& AgentTunnels::next_loop() {
  if (workers_.size() < threads_) {
    workers_.push_back(std::make_unique<Worker>());
    return workers_.back()->loop;
  }
  return workers_[turn_++ % threads_]->loop;
}

Result<AgentTunnels::Dialled> AgentTunnels::dial(const std::string& host_name,
                                                 const std::string& address, std::uint16_t port) {
  Dialled dialled;
  dialled.loop = &next_loop();
  const auto tunnel = std::make_shared<AgentTunnel>(*dialled.loop, tls_, host_name);
  dialled.tunnel = tunnel;
  dialled.shared_state = tunnel->shared_state();
  dialled.socket = IVY_TRY(tunnel->start(address, port));
  return dialled;
}

}  // namespace ivy
