// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, matched by tag: send, receive from one rank or from any.
//
// Every pair has one byte stream per direction (a ring, or a TCP connection that the sender dials),
// on which a message is
//
//   u32 magic | i32 tag | u64 bytes | u8 dtype | u8 is lent | 6 zero | data      little endian
//
// so messages of one pair arrive in the order of the calls. A message of at least kMinLentBytes
// that finds no room in its ring is lent: instead of data on the stream, the receiver copies it
// directly from the sender's memory, and the send is done when the copy is.
//
// An unexpected message is buffered until a receive matches it, up to kUnexpectedBytesMax in all;
// beyond that its stream is not read, and its sender waits. Blocking calls progress all messages
// while they wait, so two ranks that both send first do not deadlock below that limit. A thread,
// started by the first asynchronous request, progresses those. Connections are dialled on separate
// threads, so a slow peer delays only the messages to it.
//
//   PointToPoint ── MessageTraffic (messages in transit) ── MessageMatching
//        └───────── PeerLiveness (absent ranks) ── MessageFailureDetector
//
// Every error breaks the communicator, whichever rank finds it: every rank is notified first
// (FailureHandler::break_all()), then the requests end.
//
// Thread: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/group/core/work.h"
#include "comm/group/p2p/message_failure_detector.h"
#include "comm/group/p2p/message_traffic.h"
#include "comm/group/p2p/peer_liveness.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

class PointToPoint {
 public:
  // `local` and `connections` may be null if no rank needs them. `detector` may be null.
  PointToPoint(PointToPointOptions options, SharedGroup* local, PeerConnections* connections,
               std::unique_ptr<FailureDetector> detector);
  // No call may be in progress. Asynchronous requests that are not done end as aborted. Messages
  // whose sends are done still reach their receivers.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  using Requests = std::vector<std::shared_ptr<MessageRequest>>;
  // Progresses the requests until all of them are done. A receive that no message has matched
  // within `wait_limit` ends without an error, with status.source -1; the message may arrive later.
  Outcome run(const Requests& requests, std::chrono::nanoseconds timeout,
              std::chrono::nanoseconds wait_limit = std::chrono::nanoseconds::max());
  // Queues the request for the thread.
  void post(const std::shared_ptr<MessageRequest>& request, std::chrono::nanoseconds timeout);
  // Waits until all posted sends are done, as long as their receivers keep reading.
  Outcome finish_sends();
  // Ends all current and future requests with this failure.
  void break_with(const Failure& failure);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Limits of run_until_done().
  struct RunLimits {
    std::chrono::nanoseconds idle = std::chrono::nanoseconds::max();
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  };
  Outcome run_until_done(Lock& lock, const Requests& requests, const RunLimits& limits);
  void sleep_until_event(Lock& lock, PollingScope& polling, MessageRequest& open,
                         std::chrono::steady_clock::time_point until);
  static void spin(Lock& lock, std::chrono::nanoseconds idle);
  bool pause(Lock& lock, PollingScope& polling, std::chrono::steady_clock::time_point until);
  bool pause(Lock& lock, std::uint32_t seen_count, std::chrono::steady_clock::time_point until);
  void run_thread();
  void move_pending(Lock& lock);
  bool find_overdue(const Requests& requests);
  bool report_found(Lock& lock);
  Outcome fail_with_exception(Lock& lock, const std::exception& problem);
  std::uint32_t wake_count() const { return mail_ != nullptr ? mail_->wake_count() : 0; }

  const PointToPointOptions options_;
  MessageRings* const mail_;  // Null if no other rank is on this host.
  MessageFailureDetector detector_;
  std::mutex mutex_;  // Guards traffic_, pending_ and is_ending_.
  MessageTraffic traffic_;
  PeerLiveness liveness_;  // Locks mutex_ itself.
  Requests pending_;       // Requests that the thread has to complete.
  bool is_ending_ = false;
  std::condition_variable has_work_;
  std::thread thread_;
};

}  // namespace ivy::comm
