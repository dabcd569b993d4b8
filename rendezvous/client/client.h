// A client of the store: blocking, with deadlines and cancellation, on plain POSIX sockets. It is
// what comm and the tests use; no Asio, no protobuf, no thread of its own.
//
// Threads: any number may call at once; they share one connection, and each call gets its own
// reply. cancel() may be called from any thread and makes every call, present and to come, return
// Cancelled. Lifetime: no call may be under way when it is destroyed.
//
// Deadlines: a call with a timeout returns DeadlineExceeded by then, with the text in which the
// store names what is missing; a call to a store that does not answer fails kAnswerGrace later.
// Other calls end after ClientOptions::request_timeout, or after their own `limit` where they are
// given one. A timeout beyond a year means no timeout.
//
// Reconnecting: a lost connection is dialled again for as long as the call's deadline allows.
// Requests that change nothing (get, wait, check, multi_get, list, count, queue_length) are then
// sent again; so are set, set_once, multi_set, remove and barrier, which the store recognizes and
// does once, however often it gets them (answered_requests.h). The first four of these fail with
// Unavailable when they would have to be sent again after repeat_for, and add, append, compare_set,
// push and pop as soon as a byte of them has left: it is unknown whether they happened. A store
// that has lost its contents (another epoch) fails everything with Aborted "EpochLost", one of
// another generation with FailedPrecondition. A store that cannot be reached is Unavailable.
//
// Fork: the child shares the connection and must not use it. Every call in another process than
// the one that connected returns FailedPrecondition, and destruction there only closes the child's
// descriptor. The child makes a client of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

struct ClientOptions {
  std::string address;  // "10.0.0.1:4123", "[fd00::1]:4123", "unix:/path".
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::chrono::milliseconds connect_timeout{30'000};
  std::chrono::milliseconds request_timeout{60'000};  // For calls without a timeout.
  // False: the store would not be started again, so a lost connection is final, and every later
  // call fails with Unavailable at once.
  bool may_redial = true;
  // How long after it was first sent a set, set_once, multi_set or remove is sent again; at most
  // kRepeatFor.
  std::chrono::milliseconds repeat_for{kRepeatFor};
};

// How long after a call's own timeout the store may take to answer that the call has timed out.
inline constexpr std::chrono::milliseconds kAnswerGrace{2'000};

class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Limit = std::optional<Milliseconds>;  // Nothing: request_timeout.
  // Dials until connect_timeout. InvalidArgument: the options are wrong; Unauthenticated: the store
  // does not know the token, or closes the connection on the greeting (another job or version);
  // FailedPrecondition: another generation; Unavailable: no store answers.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<void> set(std::string_view key, std::string_view value, Limit limit = std::nullopt);
  Result<void> set_once(std::string_view key, std::string_view value, Limit limit = std::nullopt);
  Result<std::string> get(std::string_view key, Limit limit = std::nullopt);  // NotFound.
  Result<std::string> wait_get(std::string_view key, Milliseconds timeout);
  // `limit`: how long the store may stay silent, from the call on; the default is kAnswerGrace
  // beyond the timeout.
  Result<void> wait(const std::vector<std::string>& keys, Milliseconds timeout,
                    Limit limit = std::nullopt);
  Result<bool> check(const std::vector<std::string>& keys, Limit limit = std::nullopt);
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Returns whether `desired` was stored, and the value afterwards (nothing: the key is missing).
  Result<std::pair<bool, std::optional<std::string>>> compare_set(
      std::string_view key, const std::optional<std::string>& expected, std::string_view desired,
      Limit limit = std::nullopt);
  Result<std::uint64_t> append(std::string_view key, std::string_view value);
  Result<bool> remove(std::string_view key);
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Limit limit = std::nullopt);
  Result<void> multi_set(const std::vector<std::pair<std::string, std::string>>& entries);
  Result<std::uint64_t> push(std::string_view queue, std::string_view value);
  Result<std::string> pop(std::string_view queue, Milliseconds timeout);
  Result<std::uint64_t> queue_length(std::string_view queue);
  Result<std::vector<std::string>> list(std::string_view prefix,
                                        Limit limit = std::nullopt);  // Per page.
  Result<std::uint64_t> count(std::string_view prefix);
  // Returns the number of the round, from 1. A caller that waits in several short calls passes the
  // same `arrival`, from new_arrival(), in each, so that they are one wait: the answer to one call
  // may arrive only in the next.
  Result<std::uint64_t> barrier(std::string_view name, std::uint32_t size, std::uint32_t member,
                                Milliseconds timeout,
                                std::optional<std::uint64_t> arrival = std::nullopt);
  std::uint64_t new_arrival();
  struct Meeting {
    std::uint64_t round = 0;
    std::optional<std::uint32_t> lost_member;  // Set: no further round will complete.
  };
  // A barrier that ends for good, for all members, when a client that waits in it is lost.
  Result<Meeting> barrier_without_losses(std::string_view name, std::uint32_t size,
                                         std::uint32_t member, Milliseconds timeout);
  Result<std::string> why();
  Result<void> ping();

  void cancel();

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
