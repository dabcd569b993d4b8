// SPDX-License-Identifier: Apache-2.0
// Runs the steps of libssh's session (ssh_session.h): on pool threads with a time limit while they
// may block, and then on the loop, which waits for the socket between two steps. Thread: the
// loop's.
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

  // Takes over a connected TCP socket. ResourceExhausted: no descriptor is left. Internal: libssh
  // cannot be set up.
  Result<void> open(const SshTarget& target, Descriptor connected);
  // Disconnects and closes the socket; open() may be called again. A step that still runs on the
  // pool is abandoned, and ends the session on its thread.
  void close();
  bool is_open() const { return session_ != nullptr; }
  // Call only while the wire is open.
  SshSession& session() { return *session_; }
  // Returns up to 256 bytes that the server has sent and that were not read yet, without reading
  // them.
  std::string peek();

  // Sets the time after which call(), repeat() and ready() give up.
  void set_limit(std::chrono::nanoseconds time);
  void lift_limit() { limit_ns_.reset(); }

  // Runs step(session) on the pool, because it may read files or query the SSH agent; `what` names
  // these to the user. DeadlineExceeded: the limit has passed, and the wire is closed.
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

  // Repeats a step of libssh on the pool whenever the socket is ready, until it is done or has
  // failed. Returns kAgain if the limit passes while the server is awaited. Returns kFailed also if
  // the server has closed the connection, because libssh would then return kAgain for ever.
  // DeadlineExceeded as in call().
  template <class Step>
  Awaitable<Result<SshStep>> repeat(std::string what, Step step) {
    const auto once = [step](SshSession& session) mutable -> Result<SshStep> {
      const SshStep done = step(session);
      return done == SshStep::kAgain && session.is_closed() ? SshStep::kFailed : done;
    };
    for (;;) {
      const Result<SshStep> result = co_await call(what, once);
      if (!result.ok() || *result != SshStep::kAgain) co_return result;
      const bool in_time = co_await ready(WaitMode::kWhenReady);
      if (!in_time) co_return SshStep::kAgain;
    }
  }

  // How ready() waits. Data that libssh has taken from the socket during another operation does not
  // make the socket readable. kPollSoon therefore ends the wait after kPollInterval: use it while
  // the far end waits for this side.
  enum class WaitMode { kWhenReady, kPollSoon };
  // Waits until the socket is ready, wake() is called, or the limit passes. Returns false if the
  // limit had passed before the call.
  Awaitable<bool> ready(WaitMode mode);
  // Ends ready() in the next turn of the loop, or the next call of it immediately.
  void wake();

 private:
  static constexpr std::chrono::nanoseconds kPollInterval = std::chrono::milliseconds(50);
  static constexpr std::chrono::nanoseconds kForever = std::chrono::hours(24 * 365);
  void wait_for_socket(const Arrival<bool>& arrive);
  // See ssh_wire.cc.
  bool is_stalled();
  BlockingPool::Duration time_left() const;

  Sequence& sequence_;
  TransportContext& context_;
  const std::string host_;
  std::shared_ptr<SshSession> session_;
  bool is_busy_ = false;                          // A step is running on the pool.
  boost::asio::posix::stream_descriptor socket_;  // Waits on a copy of libssh's descriptor.
  std::optional<std::uint64_t> limit_ns_;         // On the clock of monotonic_ns().
  // Unread bytes in the socket at the last wait; 0: none but the end of the stream. Empty: the
  // socket had nothing to read.
  std::optional<int> unread_;
  Arrival<bool> arrive_;   // Ends the present wait.
  bool is_woken_ = false;  // wake() was called, and ready() has not returned since.
};

}  // namespace ivy
