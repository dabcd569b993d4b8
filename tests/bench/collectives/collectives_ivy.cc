// SPDX-License-Identifier: Apache-2.0
// The loop of collective_loop.h over libivycomm; also "memcpy" (every rank copies its own bytes at
// once) and "stream" (as many bytes both ways over a plain loopback connection of two ranks).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "comm/contract/ivycomm.h"
#include "tests/bench/collectives/collective_loop.h"

namespace {

void check(int code) {
  if (code == IVY_OK) return;
  std::fprintf(stderr, "libivycomm: %s\n", ivy_last_error());
  std::exit(1);
}

class Ivy {
 public:
  Ivy() { check(ivy_init(nullptr, &world_)); }
  ~Ivy() {
    if (socket_ >= 0) close(socket_);
    ivy_finalize(world_);
  }
  int rank() const { return ivy_comm_rank(world_); }
  int size() const { return ivy_comm_size(world_); }
  static bool has(const std::string&) { return true; }
  void barrier() { check(ivy_barrier(world_, nullptr)); }
  void all_reduce(const float* send, float* receive, std::size_t count) {
    check(ivy_all_reduce(world_, send, receive, count, IVY_F32, IVY_SUM, nullptr));
  }
  void broadcast(float* buffer, std::size_t count) {
    check(ivy_broadcast(world_, buffer, count, IVY_F32, 0, nullptr));
  }
  void all_gather(const float* send, float* receive, std::size_t count) {
    check(ivy_all_gather(world_, send, receive, count, IVY_F32, nullptr));
  }
  void reduce_scatter(const float* send, float* receive, std::size_t count) {
    check(ivy_reduce_scatter(world_, send, receive, count, IVY_F32, IVY_SUM, nullptr));
  }
  void all_to_all(const float* send, float* receive, std::size_t count) {
    check(ivy_all_to_all(world_, send, receive, count, IVY_F32, nullptr));
  }
  void maximum(double* values, std::size_t count) {
    check(ivy_all_reduce(world_, IVY_IN_PLACE, values, count, IVY_F64, IVY_MAX, nullptr));
  }
  // Registered, where the run asks for it (BENCH_REGISTERED=1).
  float* buffer(std::size_t floats) {
    if (std::getenv("BENCH_REGISTERED") == nullptr) return new float[floats];
    void* memory = nullptr;
    check(ivy_mem_alloc(world_, floats * sizeof(float), &memory));
    return static_cast<float*>(memory);
  }
  // The floor of everything over TCP: no library in between. Its socket has the library's options.
  void stream(const float* send, float* receive, std::size_t bytes) {
    if (socket_ < 0) connect_pair();
    std::size_t sent = 0;
    std::size_t received = 0;
    while (sent < bytes || received < bytes) {
      bool has_moved = false;
      if (sent < bytes) {
        const ssize_t n =
            ::send(socket_, reinterpret_cast<const char*>(send) + sent,
                   std::min<std::size_t>(bytes - sent, 1 << 20), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) sent += static_cast<std::size_t>(n);
        has_moved |= n > 0;
      }
      if (received < bytes) {
        const ssize_t n = recv(socket_, reinterpret_cast<char*>(receive) + received,
                               std::min<std::size_t>(bytes - received, 1 << 20), MSG_DONTWAIT);
        if (n > 0) received += static_cast<std::size_t>(n);
        has_moved |= n > 0;
      }
      if (!has_moved) sched_yield();
    }
  }

 private:
  void connect_pair() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    std::int32_t port = 0;
    int listener = -1;
    if (rank() == 0) {
      listener = socket(AF_INET, SOCK_STREAM, 0);
      if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
          listen(listener, 1) != 0)
        std::exit(1);
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
      port = ntohs(address.sin_port);
    }
    check(ivy_broadcast(world_, &port, 1, IVY_I32, 0, nullptr));
    if (rank() == 0) {
      socket_ = accept(listener, nullptr, nullptr);
      close(listener);
    } else {
      address.sin_port = htons(static_cast<std::uint16_t>(port));
      socket_ = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(socket_, reinterpret_cast<sockaddr*>(&address), length) != 0) std::exit(1);
    }
    const int on = 1;
    const int buffer = 4 << 20;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    // Slower with a congestion control that paces (bbr).
    setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }

  ivy_comm* world_ = nullptr;
  int socket_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  Ivy library;
  const bool has_processor_each = bench::pin(library.rank(), library.size());
  bench::Loop<Ivy>(library, std::getenv("BENCH_REGISTERED") == nullptr ? "ivy" : "ivy registered",
                   bench::options_of(argc, argv), has_processor_each)
      .run();
}
