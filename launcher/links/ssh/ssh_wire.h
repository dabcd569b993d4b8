// SPDX-License-Identifier: Apache-2.0
// libssh's session, the threads on which its steps run, and the socket on which they wait. Thread:
// the loop's.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "launcher/links/ssh/ssh_session.h"
#include "launcher/links/transport_context.h"
#include "launcher/streams/sequence.h"
#include "proto/os/descriptor.h"

namespace ivy {

class SshWire {
 public:
  // host: its name in messages.
  SshWire(Sequence& sequence, TransportContext& context, std::string host)
      : sequence_(sequence), context_(context), host_(std::move(host)), socket_(sequence.loop()) {}

  // Takes over a connected TCP socket. ResourceExhausted: too few descriptors. Internal: libssh.
  Result<void> open(const SshTarget& target, Descriptor connected);
  // Says goodbye and closes the socket; may be opened again. A step that still runs is abandoned:
  // it ends the session on its own thread.
  void close();
  // Only while it is open.
  SshSession& session() { return *session_; }
  // Returns the first bytes from the server that were not read yet.
  std::string peek();

  // The time after which repeat() and ready() give up.
  void set_limit(std::chrono::nanoseconds time);
  void lift_limit() { limit_ns_.reset(); }

  // Runs step(session) on the pool: it may read files or query the SSH agent, which `what` names.
  // DeadlineExceeded: the limit is over, and the wire is closed.
  template <class Step>
  Awaitable<std::invoke_result_t<Step&, SshSession&>> call(std::string what, Step step) {
    const auto work = [session = session_, step]() mutable { return step(*session); };
    is_busy_ = true;
    auto result =
        co_await call_blocking(sequence_, context_, host_, std::move(what), time_left(), work);
    if (result.ok() || result.error().code != Code::kDeadlineExceeded) {
      is_busy_ = false;
    } else {
      close();
    }
    co_return result;
  }

  // Repeats a step of libssh on the pool whenever the socket is ready. kAgain: the limit is over
  // while the server is awaited. kFailed also if the server has hung up: libssh asks for more then,
  // for ever. DeadlineExceeded as in call().
  template <class Step>
  Awaitable<Result<SshStep>> repeat(std::string what, Step step) {
    const auto once = [step](SshSession& session) mutable -> Result<SshStep> {
      const SshStep done = step(session);
      return done == SshStep::kAgain && session.is_closed() ? SshStep::kFailed : done;
    };
    for (;;) {
      const Result<SshStep> result = co_await call(what, once);
      if (!result.ok() || *result != SshStep::kAgain) co_return result;
      const bool in_time = co_await ready(Look::kWhenReady);
      if (!in_time) co_return SshStep::kAgain;
    }
  }

  // Data that libssh has read from the socket during another operation wakes no waiter.
  // kSoonAnyway: the far end waits for this side, so check again without being woken.
  enum class Look { kWhenReady, kSoonAnyway };
  // Waits for the socket, or for wake(). Returns false after the limit.
  Awaitable<bool> ready(Look look);
  // Ends ready(), in the next turn of the loop.
  void wake();

 private:
  static constexpr std::chrono::nanoseconds kLookAgain = std::chrono::milliseconds(50);
  static constexpr std::chrono::nanoseconds kForever = std::chrono::hours(24 * 365);
  void wait_for_socket(const Arrival<bool>& arrive);
  bool is_stalled();
  BlockingPool::Duration time_left() const;

  Sequence& sequence_;
  TransportContext& context_;
  const std::string host_;
  std::shared_ptr<SshSession> session_;
  bool is_busy_ = false;                          // A step runs on another thread.
  boost::asio::posix::stream_descriptor socket_;  // A copy of libssh's descriptor, to wait on.
  std::optional<std::uint64_t> limit_ns_;         // On the clock of monotonic_ns().
  std::optional<int>
      unread_;  // Bytes in the socket when it was last waited for; 0: none, or its end.
  Arrival<bool> arrive_;
  bool is_woken_ = false;
};

}  // namespace ivy
