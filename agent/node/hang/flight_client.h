// SPDX-License-Identifier: Apache-2.0
// Requests torch's flight records from outside: connects to the worker server that our Python hook
// made torch open on a Unix socket (python_hook.h), and requests the record of each backend as
// JSON. Does not parse the answers. Thread: any; never blocks. Lifetime: closes its socket.
//
// The answers depend on torch's version: 2.11 has the records of Gloo and of its older NCCL
// backend. 2.15 has a record for any backend, but only Gloo's is complete: the others lack finished
// operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"

namespace ivy {

class FlightClient {
 public:
  // Limit for all questions together. A running server answers each within a millisecond.
  static constexpr std::uint64_t kTimeoutNs = 1'500'000'000;
  static constexpr std::size_t kMaxHeadBytes = 16u << 10;
  // Limit of one answer: 15,000 collectives. ivyrun makes torch keep 1,000.
  static constexpr std::size_t kMaxAnswerBytes = 8u << 20;

  struct Record {
    std::string backend;
    std::string json;
    bool is_complete = false;
  };

  // `limit_bytes`: limit for all answers together; finished collectives that exceed it are dropped,
  // oldest first.
  FlightClient(const std::string& path, std::size_t limit_bytes);

  // Progresses as far as possible without blocking. Returns true when finished.
  bool advance(std::uint64_t now_ns);
  // Returns the records that contain anything. `note` receives the reason if one is missing.
  std::vector<Record> take(std::string& note);

 private:
  bool dial();
  // Both return false after the connection has closed.
  bool send_question();
  bool receive();
  void answered();
  void keep(const std::string& body);
  void leave_out(std::size_t bytes, std::size_t limit);
  void other_backends_are_unknown();
  void next_question();

  SocketAddress address_;
  std::size_t room_;
  std::deque<std::string> questions_;  // The current one is at the front.
  Descriptor socket_;
  std::uint64_t deadline_ns_ = 0;
  std::size_t sent_ = 0;
  std::string received_;
  std::size_t length_ = 0;  // Length of head and body together; 0 if not known yet.
  std::vector<Record> records_;
  std::string last_answer_;  // The newest answer that contains anything.
  std::string note_;
};

}  // namespace ivy
