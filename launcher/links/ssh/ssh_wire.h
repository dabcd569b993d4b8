// libssh's session, and the socket on which its steps wait. Thread: the loop's.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "launcher/links/ssh/ssh_session.h"
#include "launcher/streams/sequence.h"
#include "proto/os/descriptor.h"

namespace ivy {

class SshWire {
 public:
  explicit SshWire(Sequence& sequence) : sequence_(sequence), socket_(sequence.loop()) {}

  // Takes over a connected TCP socket. ResourceExhausted: too few descriptors. Internal: libssh.
  Result<void> open(const SshTarget& target, Descriptor connected);
  // Says goodbye and closes the socket; may be opened again.
  void close();
  // Only while it is open.
  SshSession& session() { return *session_; }

  // The time after which repeat() and ready() give up.
  void set_limit(std::chrono::nanoseconds time);
  void lift_limit() { limit_ns_.reset(); }
  // Repeats a step of libssh whenever the socket is ready. kAgain: the limit is over. kFailed also
  // if the server has hung up: libssh asks for more then, for ever.
  template <class Step>
  Awaitable<SshStep> repeat(Step step) {
    for (;;) {
      const SshStep result = step();
      if (result != SshStep::kAgain) co_return result;
      if (session_->is_closed()) co_return SshStep::kFailed;
      const bool in_time = co_await ready(Look::kWhenReady);
      if (!in_time) co_return SshStep::kAgain;
    }
  }

  // Data that libssh has taken from the socket while it did something else wakes nobody. Where the
  // far end waits for us, we look again without being woken.
  enum class Look { kWhenReady, kSoonAnyway };
  // Waits for the socket, or for wake(). False: the limit is over.
  Awaitable<bool> ready(Look look);
  // Ends ready(), in the next turn of the loop.
  void wake();

 private:
  static constexpr std::chrono::nanoseconds kLookAgain = std::chrono::milliseconds(50);
  static constexpr std::chrono::nanoseconds kForever = std::chrono::hours(24 * 365);
  void wait_for_socket(const Arrival<bool>& arrive);
  bool is_stalled();

  Sequence& sequence_;
  std::unique_ptr<SshSession> session_;
  boost::asio::posix::stream_descriptor socket_;  // A copy of libssh's descriptor, to wait on.
  std::optional<std::uint64_t> limit_ns_;         // On the clock of monotonic_ns().
  std::optional<int>
      unread_;  // Bytes in the socket when it was last waited for; 0: none, or its end.
  Arrival<bool> arrive_;
  bool is_woken_ = false;
};

}  // namespace ivy
