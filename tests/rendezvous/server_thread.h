// SPDX-License-Identifier: Apache-2.0
// Runs the real server on loopback in its own thread, and raw sockets to send it bad input.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "proto/os/listening_socket.h"
#include "proto/wire/handshake.h"
#include "rendezvous/client/client.h"
#include "rendezvous/server/server.h"
#include "tests/support/eventually.h"

namespace ivy::test {

inline const std::string kJobId = "00112233445566778899aabbccddeeff";
inline const std::string kToken(32, 't');

inline std::uint16_t port_of(int fd) {
  const std::string address = store::address_of(fd);
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

class ServerThread {
 public:
  // A port of 0 means any. `host` is the address of the torch socket.
  explicit ServerThread(store::ServerLimits limits = {}, std::vector<std::string> peers = {},
                        std::uint16_t at_port = 0, const std::string& host = "127.0.0.1") {
    const int native = listen_tcp("127.0.0.1", at_port).value();
    const int torch = listen_tcp(host, 0).value();
    native_port = port_of(native);
    torch_port = port_of(torch);
    store::ServerOptions options;
    options.job_id = kJobId;
    options.token = kToken;
    options.limits = limits;
    options.torch_peers = std::move(peers);
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    server_ = std::make_unique<store::Server>(loop_, std::move(options));
    server_->listen(native, store::Server::Dialect::kNative);
    server_->listen(torch, store::Server::Dialect::kTorch);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~ServerThread() { stop(); }

  void stop() {
    if (!thread_.joinable()) return;
    on_loop([this](store::Server&) { server_.reset(); });
    work_.reset();
    thread_.join();
  }
  // Runs `body` on the server's thread and returns its result.
  template <class Body>
  auto on_loop(Body body) -> decltype(body(std::declval<store::Server&>())) {
    std::packaged_task<decltype(body(std::declval<store::Server&>()))()> task(
        [&] { return body(*server_); });
    auto done = task.get_future();
    boost::asio::post(loop_, [&] { task(); });
    return done.get();
  }
  std::size_t connections() {
    return on_loop([](store::Server& server) { return server.connection_count(); });
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  store::ClientOptions options() const {
    store::ClientOptions options;
    options.address = "127.0.0.1:" + std::to_string(native_port);
    options.job_id = kJobId;
    options.token = kToken;
    options.rank = 0;
    options.connect_timeout = scaled_time(std::chrono::seconds(5));
    options.request_timeout = scaled_time(std::chrono::seconds(10));
    return options;
  }
  std::unique_ptr<store::Client> client(std::optional<std::uint32_t> rank = 0) const {
    store::ClientOptions wanted = options();
    wanted.rank = rank;
    Result<std::unique_ptr<store::Client>> made = store::Client::connect(wanted);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? std::move(made).value() : nullptr;
  }

  std::uint16_t native_port = 0;
  std::uint16_t torch_port = 0;

 private:
  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  std::unique_ptr<store::Server> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::string log_;
};

// A socket that sends and receives raw bytes.
class RawSocket {
 public:
  RawSocket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit RawSocket(std::uint16_t port, const std::string& host = "127.0.0.1") : RawSocket() {
    connect(port, host);
  }
  ~RawSocket() { close(); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  void connect(std::uint16_t port, const std::string& host = "127.0.0.1") {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, host.c_str(), &address.sin_addr);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(const std::string& bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Sends as many bytes as the socket accepts without blocking. Returns their number.
  std::size_t send_some(std::string_view bytes) const {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  // Returns `bytes` bytes, or fewer after the timeout or the end of the stream.
  std::string receive(std::size_t bytes,
                      std::chrono::milliseconds within = std::chrono::seconds(5)) const {
    const auto end = std::chrono::steady_clock::now() + scaled_time(within);
    std::string received;
    std::array<char, 65536> buffer;
    while (received.size() < bytes) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd polled{fd_, POLLIN, 0};
      if (left.count() <= 0 || poll(&polled, 1, static_cast<int>(left.count())) <= 0) break;
      const ssize_t count =
          recv(fd_, buffer.data(), std::min(buffer.size(), bytes - received.size()), 0);
      if (count <= 0) break;
      received.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return received;
  }
  // Returns true if the other end closes the connection in time.
  bool is_hung_up(std::chrono::milliseconds within = std::chrono::seconds(5)) const {
    return eventually(
        [this] {
          char byte = 0;
          const ssize_t count = recv(fd_, &byte, 1, MSG_DONTWAIT);
          return count == 0 || (count < 0 && errno != EAGAIN);
        },
        within);
  }
  // Greets the server like a native client with the token. Returns false if it is rejected.
  bool greet(const std::string& token = kToken) const {
    HandshakeHello hello;
    hello.purpose = "store";
    hello.job_id = kJobId;
    hello.nonce = random_bytes(kNonceBytes);
    const std::string bytes = encode_hello(hello);
    send(bytes);
    const std::string challenge = receive(kChallengeBytes);
    if (challenge.size() != kChallengeBytes) return false;
    send(make_proof(bytes, challenge, token));
    return receive(9).size() == 9;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace ivy::test
