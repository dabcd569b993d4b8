// A client of the store: blocking, with deadlines and cancellation, on plain POSIX sockets. It is
// what comm and the tests use; no Asio, no protobuf, no thread of its own.
//
// Threads: any number may call at once; they share one connection, and each call gets its own
// reply. Lifetime: no call may be under way when it is destroyed.
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
#include "rendezvous/client/shared_connection.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

inline Result<void> done(const Result<Done>& answer) {
  return answer.ok() ? Result<void>() : answer.error();
}
inline Result<std::uint64_t> counted(const Result<Number>& answer) {
  if (!answer.ok()) return answer.error();
  return static_cast<std::uint64_t>(answer->value);
}

class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Limit = std::optional<Milliseconds>;  // Where it is empty, request_timeout holds.
  using Entries = std::vector<std::pair<std::string, std::string>>;
  using Names = std::vector<std::string>;

  // Dials until connect_timeout. InvalidArgument: the options are wrong; Unauthenticated: the store
  // does not know the token, or closes the connection on the greeting (another job or version);
  // FailedPrecondition: another generation; Unavailable: no store answers.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);

  // Any request of requests.h that the native dialect has, and its answer. The calls below are
  // these requests by name.
  template <class Kind>
  Result<typename Kind::Answer> ask(Kind request, SharedConnection::Times times = {}) {
    ReplyBody body = IVY_TRY(connection_->ask(Request(std::move(request)), times));
    return std::get<typename Kind::Answer>(std::move(body));
  }

  Result<void> set(std::string_view key, std::string_view value, Limit limit = std::nullopt) {
    return done(ask(Set{std::string(key), std::string(value)}, {.limit = limit}));
  }
  Result<void> set_once(std::string_view key, std::string_view value, Limit limit = std::nullopt) {
    return done(ask(Set{std::string(key), std::string(value), true}, {.limit = limit}));
  }
  // NotFound if the key is missing.
  Result<std::string> get(std::string_view key, Limit limit = std::nullopt) {
    return IVY_TRY(ask(Get{std::string(key), std::nullopt}, {.limit = limit})).bytes;
  }
  Result<std::string> wait_get(std::string_view key, Milliseconds timeout) {
    return IVY_TRY(ask(Get{std::string(key), kNever}, {.timeout = timeout})).bytes;
  }
  // `limit`: how long the store may stay silent, from the call on; the default is kAnswerGrace
  // beyond the timeout.
  Result<void> wait(const Names& keys, Milliseconds timeout, Limit limit = std::nullopt) {
    return done(ask(Wait{keys}, {timeout, limit}));
  }
  Result<bool> check(const Names& keys, Limit limit = std::nullopt) {
    return IVY_TRY(ask(Check{keys}, {.limit = limit})).value == 1;
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) {
    return IVY_TRY(ask(Add{std::string(key), delta})).value;
  }
  // Returns whether `desired` was stored, and the value afterwards (nothing: the key is missing).
  Result<std::pair<bool, std::optional<std::string>>> compare_set(
      std::string_view key, const std::optional<std::string>& expected, std::string_view desired,
      Limit limit = std::nullopt) {
    Compared found = IVY_TRY(
        ask(CompareSet{std::string(key), expected, std::string(desired)}, {.limit = limit}));
    return std::pair(found.stored, std::move(found.current));
  }
  Result<std::uint64_t> append(std::string_view key, std::string_view value) {
    return counted(ask(Append{std::string(key), std::string(value)}));
  }
  Result<bool> remove(std::string_view key) {
    return IVY_TRY(ask(Delete{std::string(key)})).value == 1;
  }
  Result<Names> multi_get(const Names& keys, Limit limit = std::nullopt) {
    return IVY_TRY(ask(MultiGet{keys}, {.limit = limit})).bytes;
  }
  Result<void> multi_set(const Entries& entries) { return done(ask(MultiSet{entries})); }
  Result<std::uint64_t> push(std::string_view queue, std::string_view value) {
    return counted(ask(QueuePush{std::string(queue), std::string(value)}));
  }
  Result<std::string> pop(std::string_view queue, Milliseconds timeout) {
    return IVY_TRY(ask(QueuePop{std::string(queue), kNever}, {.timeout = timeout})).bytes;
  }
  Result<std::uint64_t> queue_length(std::string_view queue) {
    return counted(ask(QueueLength{std::string(queue)}));
  }
  // The limit is that of each page.
  Result<Names> list(std::string_view prefix, Limit limit = std::nullopt);
  Result<std::uint64_t> count(std::string_view prefix) {
    return counted(ask(Count{std::string(prefix)}));
  }
  // Returns the number of the round, from 1. A caller that waits in several short calls passes the
  // same `arrival`, from new_arrival(), in each, so that they are one wait: the answer to one call
  // may arrive only in the next.
  Result<std::uint64_t> barrier(std::string_view name, std::uint32_t size, std::uint32_t member,
                                Milliseconds timeout,
                                std::optional<std::uint64_t> arrival = std::nullopt) {
    return counted(ask(Barrier{std::string(name), size, member, arrival ? *arrival : new_arrival()},
                       {.timeout = timeout}));
  }
  std::uint64_t new_arrival() { return connection_->new_arrival(); }
  struct Round {
    std::uint64_t number = 0;
    std::optional<std::uint32_t> lost_member;  // Set: no further round will complete.
  };
  // A barrier that ends for good, for all members, when a client that waits in it is lost.
  Result<Round> barrier_without_losses(std::string_view name, std::uint32_t size,
                                       std::uint32_t member, Milliseconds timeout);
  // Tells every change of a key that begins with `prefix`, from now on, until end_watch(). A lost
  // connection is dialled again; a kOverflow says that changes may have been missed. One thread at
  // a time takes a watch's changes, any may end it.
  Result<std::uint32_t> watch(std::string_view prefix) { return connection_->watch(prefix); }
  // DeadlineExceeded: nothing has changed. Cancelled: the watch has ended.
  Result<Changed> next_change(std::uint32_t watch, Milliseconds timeout) {
    return connection_->next_change(watch, timeout);
  }
  void end_watch(std::uint32_t watch) { connection_->end_watch(watch); }
  // Returns the wait graph as text.
  Result<std::string> why() { return IVY_TRY(ask(Why{})).bytes; }
  Result<void> ping() { return connection_->ping(); }

  // Makes every call, present and to come, return Cancelled. Any thread.
  void cancel() { connection_->cancel(); }

 private:
  explicit Client(std::unique_ptr<SharedConnection> connection)
      : connection_(std::move(connection)) {}

  const std::unique_ptr<SharedConnection> connection_;
};

}  // namespace ivy::store
