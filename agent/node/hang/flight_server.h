// SPDX-License-Identifier: Apache-2.0
// torch's flight records, from outside: asks the worker server that our Python hook has let torch
// open on a Unix socket (python_hook.h) for the record of each backend, as JSON. The answers are
// not parsed here. Thread: any; nothing blocks. Lifetime: closes its socket.
//
// What the server answers is a matter of torch's version: 2.11 knows the record of Gloo and that of
// its older NCCL backend, 2.15 that of any backend, of which only Gloo's is complete: of others it
// leaves out what is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/os/socket_address.h"

namespace ivy {

class FlightServer {
 public:
  // All questions together. A server that lives answers each within a millisecond.
  static constexpr std::uint64_t kPatienceNs = 1'500'000'000;
  static constexpr std::size_t kMaxHeadBytes = 16u << 10;
  // The limit of one answer: 15,000 collectives. ivyrun lets torch keep 1,000.
  static constexpr std::size_t kMaxAnswerBytes = 8u << 20;

  struct Record {
    std::string backend;
    std::string json;
    bool is_complete = false;
  };

  // `limit_bytes`: limit of all kept answers; the excess is dropped first.
  FlightServer(const std::string& path, std::size_t limit_bytes);

  // Progresses as far as possible without blocking. Returns true when the exchange has finished.
  bool advance(std::uint64_t now_ns);
  // The records that say anything. `note`: why one is missing, if there is anything to say.
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
  std::deque<std::string> questions_;  // The current one is the first.
  Descriptor socket_;
  std::uint64_t deadline_ns_ = 0;
  std::size_t sent_ = 0;
  std::string heard_;
  std::size_t length_ = 0;  // The head's and the body's together; 0: not known yet.
  std::vector<Record> records_;
  std::string last_answer_;  // The newest that says anything.
  std::string note_;
};

}  // namespace ivy
