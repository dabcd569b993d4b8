// SPDX-License-Identifier: Apache-2.0
// Fetches the flight records of a worker that runs torch. A flight record is the JSON log in which
// a torch backend, such as Gloo or NCCL, notes its latest collective operations and their states.
// The records are served over HTTP by torch's worker server, which our Python hook made torch open
// on a Unix socket (python_hook.h). FlightClient requests the record of each backend, one after the
// other, and does not interpret them. Not thread-safe; never blocks.
//
// The records depend on torch's version: 2.11 has those of Gloo and of its older NCCL backend. 2.15
// has a record for any backend, but only Gloo's is complete: the others lack finished operations.
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
  // Limit for all requests together. A running server responds to each within a millisecond.
  static constexpr std::uint64_t kTimeoutNs = 1'500'000'000;
  static constexpr std::size_t kMaxHeadBytes = 16u << 10;
  // Limit of one record: 15,000 collectives. ivyrun makes torch keep 1,000.
  static constexpr std::size_t kMaxBodyBytes = 8u << 20;

  struct Record {
    std::string backend;
    std::string json;
    bool is_complete = false;  // Whether it includes finished operations.
  };

  // `limit_bytes`: limit for all records together; finished collectives that exceed it are dropped,
  // oldest first.
  FlightClient(const std::string& path, std::size_t limit_bytes);

  // Progresses as far as possible without blocking. Returns true when finished.
  bool advance(std::uint64_t now_ns);
  // Returns the records that contain anything. `note` receives the reason if one is missing.
  std::vector<Record> take(std::string& note);

 private:
  struct Request {
    std::string handler;  // With its parameters, such as "fr_trace_json?backend=gloo".
    std::string backend;
    bool has_backend_parameter;
    bool is_complete;  // Of the record that is expected.
  };

  // kPending: the socket is not ready, so the step must be repeated later.
  enum class Progress { kPending, kDone, kFailed };

  Progress dial();
  Progress exchange();
  Progress send_request();
  Progress receive_response();
  Progress read_head();
  void on_response(const Request& request);

  SocketAddress address_;
  std::size_t remaining_bytes_;
  std::deque<Request> requests_;  // The current one is at the front.
  Descriptor socket_;
  std::uint64_t deadline_ns_ = 0;
  std::size_t sent_bytes_ = 0;
  std::string received_;
  std::size_t head_bytes_ = 0;  // 0 until the whole head has been received.
  std::size_t body_bytes_ = 0;
  std::vector<Record> records_;
  std::string last_body_;  // The newest one that contains anything.
  std::string note_;
};

}  // namespace ivy
