// SPDX-License-Identifier: Apache-2.0
// One connection to the store for all threads of a process. Each call sends a request and returns
// the answer. The request is repeated over new connections as long as that is safe (client.h).
//
// Every call queues its frame and sends as much as the socket takes immediately. Then one of the
// calling threads becomes the driver: it polls, receives for all, and sends the remaining bytes;
// the others sleep on a condition variable each. A driver whose own reply has arrived hands the
// role to another call. Only the driver closes or replaces the connection, so no thread polls a
// descriptor number that was reused.
//
// Thread: any number may call at the same time. Lifetime: no call may be in progress when it is
// destroyed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/client/frame_socket.h"
#include "rendezvous/client/open_watches.h"
#include "rendezvous/client/store_dial.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

struct ClientOptions {
  std::string address;  // Such as "10.0.0.1:4123", "[fd00::1]:4123" or "unix:/path".
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::chrono::milliseconds connect_timeout{30'000};
  std::chrono::milliseconds request_timeout{60'000};  // For calls without a timeout.
  // If false, the store will not be restarted: a lost connection is final, and every later call
  // fails with Unavailable immediately.
  bool may_redial = true;
  // Time after the first transmission during which a set, set_once, multi_set or remove may be
  // repeated; at most kRepeatFor.
  std::chrono::milliseconds repeat_for{kRepeatFor};
};

// Time that the store may take, after a call's own timeout, to answer that the call has timed out.
inline constexpr std::chrono::milliseconds kAnswerGrace{2'000};

class SharedConnection {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Times {
    std::optional<Milliseconds> timeout = {};  // The store answers DeadlineExceeded after this.
    std::optional<Milliseconds> limit = {};    // Longest silence of the store.
  };

  static Result<std::unique_ptr<SharedConnection>> connect(const ClientOptions& options);

  // Sends the request and returns its answer, which holds the alternative `Answer` of the request's
  // type.
  Result<ReplyBody> query(const Request& request, Times times);
  Result<void> ping();
  // See Client: watch(), next_change() and end_watch().
  Result<std::uint32_t> watch(std::string_view prefix);
  Result<Changed> next_change(std::uint32_t watch, Milliseconds timeout);
  void end_watch(std::uint32_t watch);
  // Returns a number that is unique among all arrivals at barriers of all clients.
  std::uint64_t new_arrival();
  // Marks the connection as unusable after a malformed answer. Returns the error.
  Error reject(const char* what);
  void cancel();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Whether a call may be repeated if its answer was lost. kMay applies to read-only requests and
  // to barriers, whose arrivals the store can tell apart. kNumbered applies to requests that the
  // store executes only once, identified by their number.
  enum class Repeat { kMay, kNumbered, kMustNot };
  struct Call {
    Op op = Op::kPing;
    std::uint32_t id = 0;
    std::string payload;  // Without the timeout, if the call has one.
    Repeat repeat = Repeat::kMay;
    std::uint64_t number = 0;  // 0 unless `repeat` is kNumbered.
    bool again = false;        // Some bytes were sent on a connection that was lost.
    // When the frame was queued on the first connection over which some of its bytes were sent.
    std::uint64_t first_queued_ns = 0;
    bool timed = false;
    bool listens = false;  // Waits for a watch's next change; nothing is sent.
    std::uint64_t deadline_ns = 0;
    std::uint64_t give_up_ns = 0;
    bool queued = false;      // Its frame is in the current connection's buffer, or was sent.
    std::uint64_t begin = 0;  // Offset of its frame in the connection's outgoing bytes.
    bool done = false;
    Result<std::string> result = std::string();
    std::condition_variable changed;

    void finish(Result<std::string> answer);
  };

  explicit SharedConnection(const ClientOptions& options);
  Result<void> check_caller(std::size_t payload_bytes) const;
  Result<std::string> call(Call& call, Times times);
  Result<void> open_watch(std::uint32_t watch);

  // Require the lock.
  std::optional<Error> verdict() const;
  void send(Call& call);
  void take_frames();
  void take(WireFrame&& frame);
  void drive(Lock& lock, Call& own);
  void redial(Lock& lock, Call& own);
  void adopt(Dialled&& dialled);
  void lose();
  void finish_all(const Error& error);
  Result<std::string> await(Lock& lock, Call& call);
  void give_up_on(Call& call);
  void cancel_request(std::uint32_t id);
  void hand_over();
  void wake_driver() const;
  std::uint32_t next_id();
  std::uint64_t lowest_number() const;
  bool is_over(const Call& call) const;

  DialTarget target_;
  const Milliseconds request_timeout_;
  const bool may_redial_;
  const std::uint64_t repeat_for_ns_;
  const pid_t process_;
  const Descriptor wake_;  // An eventfd that ends the driver's poll.
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::uint64_t> barrier_calls_ = 0;

  std::mutex mutex_;
  FrameSocket socket_;
  std::string last_loss_;
  std::string epoch_;
  std::uint32_t last_id_ = 0;
  std::map<std::uint32_t, Call*> in_flight_;
  std::uint64_t next_number_ = 1;
  bool driving_ = false;
  int failed_dials_ = 0;  // Consecutive connections that were lost before any reply arrived.
  std::optional<Error> fatal_;
  OpenWatches watches_;
};

}  // namespace ivy::store
