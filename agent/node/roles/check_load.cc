// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/check_load.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "proto/os/clock.h"
#include "proto/os/listening_socket.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_waits.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Independent sums, so that the processor can overlap their latencies.
constexpr std::size_t kSums = 16;
constexpr int kStepsOfBatch = 20'000;
constexpr std::size_t kStreamChunk = 256u << 10;
// How long after its duration a stream may still connect or arrive.
constexpr milliseconds kStreamSlack{3'000};
constexpr milliseconds kConnectLimit{2'000};
constexpr milliseconds kOpeningLimit{1'000};

// Returns the operations of one batch.
double run_batch(std::array<double, kSums>& sums) {
  for (int step = 0; step < kStepsOfBatch; ++step)
    for (double& sum : sums) sum = sum * 0.999'999 + 0.000'001;
  return 2.0 * kSums * kStepsOfBatch;
}

// Runs until the end, and returns the operations.
double compute_until(steady_clock::time_point end) {
  std::array<double, kSums> sums{};
  for (std::size_t i = 0; i < kSums; ++i) sums[i] = static_cast<double>(i);
  double operations = 0;
  while (steady_now() < end) operations += run_batch(sums);
  double total = 0;
  for (const double sum : sums) total += sum;
  // Keeps the compiler from removing the loop.
  static std::atomic<double> sink;
  sink.store(total, std::memory_order_relaxed);
  return operations;
}

std::size_t usable_processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&allowed)));
}

std::string opening_of(const std::string& key, std::uint32_t round) {
  std::string opening = key;
  for (int i = 0; i < 4; ++i) opening += static_cast<char>((round >> (8 * i)) & 0xff);
  return opening;
}

// Sends for the duration. Returns an error text, or nothing.
std::string send_stream(const CheckStream& order, const std::string& opening) {
  SocketAddress to = parse_address(order.address(), static_cast<std::uint16_t>(order.port()));
  const Descriptor socket(to.is_valid() ? to.open_socket() : -1);
  if (!socket) return "no socket for " + order.address();
  const int failed = connect_to(socket.get(), to, {steady_now() + kConnectLimit, nullptr});
  if (failed != 0) return address_text(to.storage) + ": " + std::strerror(failed);
  const steady_clock::time_point end = steady_now() + milliseconds(order.duration_ms());
  if (!send_all(socket.get(), opening, {end + kStreamSlack, nullptr}))
    return address_text(to.storage) + ": the connection was closed";
  const std::string chunk(kStreamChunk, '\0');
  while (steady_now() < end) {
    const ssize_t count = ::send(socket.get(), chunk.data(), chunk.size(), MSG_NOSIGNAL);
    if (count >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return address_text(to.storage) + ": " + std::strerror(errno);
    wait_for(socket.get(), POLLOUT, {end, nullptr});
  }
  shutdown(socket.get(), SHUT_WR);
  return "";
}

// Reads to the end of the stream. Returns bytes per second.
double read_stream(int socket, steady_clock::time_point end) {
  std::string buffer(kStreamChunk, '\0');
  const steady_clock::time_point begun = steady_now();
  steady_clock::time_point last = begun;
  double bytes = 0;
  while (wait_for(socket, POLLIN, {end, nullptr})) {
    const ssize_t count = recv(socket, buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) break;
    bytes += static_cast<double>(count);
    last = steady_now();
  }
  const std::chrono::duration<double> taken = last - begun;
  return taken.count() > 0 ? bytes / taken.count() : 0;
}

}  // namespace

double measure_arithmetic(milliseconds duration) {
  const steady_clock::time_point begun = steady_now();
  const steady_clock::time_point end = begun + duration;
  std::vector<double> operations(usable_processors());
  std::vector<std::thread> threads;
  try {
    for (std::size_t i = 1; i < operations.size(); ++i)
      threads.emplace_back([&operations, i, end] { operations[i] = compute_until(end); });
  } catch (const std::system_error&) {
    // The limit of processes is reached; the host is as slow as the threads that it allows.
  }
  operations[0] = compute_until(end);
  for (std::thread& thread : threads) thread.join();
  double total = 0;
  for (const double one : operations) total += one;
  return total / std::chrono::duration<double>(steady_now() - begun).count();
}

Result<StreamMeter> StreamMeter::open(const std::string& address, std::uint16_t port_low,
                                      std::uint16_t port_high, const std::string& key) {
  for (int port = port_low; port <= std::max(port_low, port_high); ++port) {
    const Result<int> listener = listen_tcp(address, static_cast<std::uint16_t>(port));
    if (listener.ok()) return StreamMeter(Descriptor(*listener), key);
    if (listener.error().code != Code::kAlreadyExists) return listener.error();
  }
  return Error{Code::kUnavailable, "all ports of --port-range are in use on " + address};
}

std::uint16_t StreamMeter::port() const { return bound_port(listener_.get()); }

CheckStreamed StreamMeter::measure(const CheckStream& order) const {
  const std::string opening = opening_of(key_, order.round());
  CheckStreamed streamed;
  streamed.set_round(order.round());
  std::string send_error;
  std::thread sender([&] { send_error = send_stream(order, opening); });
  streamed.set_received_per_s(receive(opening, milliseconds(order.duration_ms())));
  sender.join();
  streamed.set_send_error(send_error);
  return streamed;
}

// Takes the one stream of this round; other connections are closed.
double StreamMeter::receive(const std::string& opening, milliseconds duration) const {
  const steady_clock::time_point end = steady_now() + duration + kStreamSlack;
  while (wait_for(listener_.get(), POLLIN, {end, nullptr})) {
    const Descriptor socket(
        accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) continue;
    std::string received;
    if (!receive_all(socket.get(), received, opening.size(),
                     {steady_now() + kOpeningLimit, nullptr}))
      continue;
    if (received == opening) return read_stream(socket.get(), end);
  }
  return 0;
}

}  // namespace ivy
