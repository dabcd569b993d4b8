// SPDX-License-Identifier: Apache-2.0
// Queries NCCL's health service (RAS, since 2.24) about a job that hangs. Every process that has
// created a communicator answers at NCCL_RAS_ADDR, on a separate thread of NCCL, for all processes
// of the job: which of them are silent, and how far each rank is. The protocol is lines of text;
// the server closes the connection after the answer.
//
// Not thread-safe; only await() blocks. Lifetime: closes its socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"

namespace ivy {

class RasQuestion {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // How long a stopped process may delay a query: all processes of a host listen on one address,
  // and the kernel picks one of them for each connection.
  static constexpr std::chrono::milliseconds kFirstWord{1'000};
  static constexpr std::size_t kMaxBytes = 64u << 10;

  // `address` is "127.1.2.3:28028", "[::1]:28028" or "localhost:28028"; other names are not
  // resolved. The constructor does no I/O.
  RasQuestion(std::string_view address, TimePoint deadline);

  // Progresses as far as possible without blocking. Returns true when the exchange has finished.
  bool advance(TimePoint now);
  // Blocks until advance() can progress, or for `longest`.
  void await(std::chrono::milliseconds longest) const;
  // Returns the answer to "verbose status", reduced to printable characters and newlines. After the
  // timeout or beyond kMaxBytes, returns the part received so far. Returns an empty text if no RAS
  // service listens there.
  std::string answer() const;

 private:
  void dial(TimePoint now);
  // Returns false if the connection is no longer usable.
  bool send_request();
  // Returns false if the connection is no longer usable, or the answer is complete.
  bool receive();

  SocketAddress address_;
  const TimePoint deadline_;
  TimePoint dialled_at_;
  Descriptor socket_;
  std::size_t sent_ = 0;
  std::string received_;
};

inline constexpr std::string_view kRasNoError = "no error";
// Returns the errors and warnings of an answer in one line, kRasNoError if it has none, or "no
// answer in time" if it ends before them. Pure.
std::string summary_of_ras(std::string_view answer, std::size_t longest);

}  // namespace ivy
