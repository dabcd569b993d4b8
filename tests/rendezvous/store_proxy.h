// SPDX-License-Identifier: Apache-2.0
// A proxy between a client and the store, which can hold replies back or close all connections.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/os/listening_socket.h"
#include "rendezvous/server/server.h"
#include "tests/rendezvous/server_thread.h"

namespace ivy::test {

class StoreProxy {
 public:
  explicit StoreProxy(std::uint16_t server_port)
      : listener_(listen_tcp("127.0.0.1", 0).value()), server_port_(server_port) {
    thread_ = std::thread([this] { run(); });
  }
  ~StoreProxy() {
    stopped_ = true;
    thread_.join();
    cut();
    ::close(listener_);
  }
  std::uint16_t port() const { return port_of(listener_); }
  void hold_replies(bool hold) { hold_ = hold; }
  // Closes all connections.
  void cut() {
    const std::lock_guard lock(mutex_);
    for (const Pair& pair : pairs_) {
      ::close(pair.client);
      ::close(pair.server);
    }
    pairs_.clear();
  }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return pairs_.size();
  }

 private:
  struct Pair {
    int client;
    int server;
  };

  void run() {
    while (!stopped_) {
      pollfd polled{listener_, POLLIN, 0};
      if (poll(&polled, 1, 1) > 0) take();
      const std::lock_guard lock(mutex_);
      std::erase_if(pairs_, [this](const Pair& pair) {
        const bool alive =
            pass(pair.client, pair.server) && (hold_ || pass(pair.server, pair.client));
        if (alive) return false;
        ::close(pair.client);
        ::close(pair.server);
        return true;
      });
    }
  }
  void take() {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ::close(client);
      ::close(server);
      return;
    }
    const std::lock_guard lock(mutex_);
    pairs_.push_back({client, server});
  }
  static bool pass(int from, int to) {
    std::array<char, 65536> buffer;
    const ssize_t count = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    return send(to, buffer.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL) == count;
  }

  const int listener_;
  const std::uint16_t server_port_;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> hold_ = false;
  std::mutex mutex_;
  std::vector<Pair> pairs_;
  std::thread thread_;
};

}  // namespace ivy::test
