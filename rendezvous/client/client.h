// SPDX-License-Identifier: Apache-2.0
// A client of the store: blocking, with deadlines and cancellation, on plain POSIX sockets. Used by
// comm and tests. It needs no Asio, no protobuf and no thread.
//
// Threads: any number of threads may call at the same time; they share one connection. Lifetime: no
// call may be in progress when the client is destroyed.
//
// Deadlines: a call with a timeout returns DeadlineExceeded by then, with the store's text that
// names what is missing. If the store does not answer, the call fails kAnswerGrace later. Other
// calls end after their `limit`, or else after ClientOptions::request_timeout. A timeout beyond a
// year means no timeout.
//
// Reconnecting: a lost connection is dialled again until the call's deadline. Requests whose
// Command::writes is false are then sent again; the store recognizes a repeated barrier. Of the
// others, set, set_once, multi_set and remove are sent again until repeat_for, because the store
// executes a Numbered request only once (answered_requests.h); later they fail with Unavailable.
// The rest fail with Unavailable as soon as one of their bytes was sent, because it is unknown
// whether they were executed. A store that has lost its contents (a different epoch) fails every
// call with Aborted "EpochLost", a store of another generation with FailedPrecondition, and an
// unreachable store with Unavailable.
//
// Fork: the child shares the connection and must not use it. Every call in a process other than the
// one that connected returns FailedPrecondition, and the destructor there only closes the child's
// descriptors. The child can make its own client.
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
  using Limit = std::optional<Milliseconds>;  // If empty, request_timeout applies.
  using Entries = std::vector<std::pair<std::string, std::string>>;
  using Names = std::vector<std::string>;

  // Dials until connect_timeout. Fails with InvalidArgument if the options are invalid, with
  // Unauthenticated if the store does not know the token or closes the connection during the
  // handshake (another job or version), with FailedPrecondition if the store has another
  // generation, with AlreadyExists if it takes no more clients, and with Unavailable if no store
  // answers.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);

  // Sends any request of requests.h that exists in the native dialect and returns its answer. The
  // functions below wrap these requests.
  template <class Kind>
  Result<typename Kind::Answer> query(Kind request, SharedConnection::Times times = {}) {
    ReplyBody body = IVY_TRY(connection_->query(Request(std::move(request)), times));
    return std::get<typename Kind::Answer>(std::move(body));
  }

  Result<void> set(std::string_view key, std::string_view value, Limit limit = std::nullopt) {
    return done(query(Set{std::string(key), std::string(value)}, {.limit = limit}));
  }
  Result<void> set_once(std::string_view key, std::string_view value, Limit limit = std::nullopt) {
    return done(query(Set{std::string(key), std::string(value), true}, {.limit = limit}));
  }
  // Fails with NotFound if the key is missing.
  Result<std::string> get(std::string_view key, Limit limit = std::nullopt) {
    return IVY_TRY(query(Get{std::string(key), std::nullopt}, {.limit = limit})).bytes;
  }
  Result<std::string> wait_get(std::string_view key, Milliseconds timeout) {
    return IVY_TRY(query(Get{std::string(key), kNever}, {.timeout = timeout})).bytes;
  }
  // `limit` is the longest time, measured from the call, that the store may be silent. The default
  // is kAnswerGrace after the timeout.
  Result<void> wait(const Names& keys, Milliseconds timeout, Limit limit = std::nullopt) {
    return done(query(Wait{keys}, {timeout, limit}));
  }
  Result<bool> check(const Names& keys, Limit limit = std::nullopt) {
    return IVY_TRY(query(Check{keys}, {.limit = limit})).value == 1;
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) {
    return IVY_TRY(query(Add{std::string(key), delta})).value;
  }
  // Returns whether `desired` was stored, and the value afterwards (empty if the key is missing).
  Result<std::pair<bool, std::optional<std::string>>> compare_set(
      std::string_view key, const std::optional<std::string>& expected, std::string_view desired,
      Limit limit = std::nullopt) {
    Compared found = IVY_TRY(
        query(CompareSet{std::string(key), expected, std::string(desired)}, {.limit = limit}));
    return std::pair(found.stored, std::move(found.current));
  }
  Result<std::uint64_t> append(std::string_view key, std::string_view value) {
    return counted(query(Append{std::string(key), std::string(value)}));
  }
  Result<bool> remove(std::string_view key) {
    return IVY_TRY(query(Delete{std::string(key)})).value == 1;
  }
  Result<Names> multi_get(const Names& keys, Limit limit = std::nullopt) {
    return IVY_TRY(query(MultiGet{keys}, {.limit = limit})).bytes;
  }
  Result<void> multi_set(const Entries& entries) { return done(query(MultiSet{entries})); }
  Result<std::uint64_t> push(std::string_view queue, std::string_view value) {
    return counted(query(QueuePush{std::string(queue), std::string(value)}));
  }
  Result<std::string> pop(std::string_view queue, Milliseconds timeout) {
    return IVY_TRY(query(QueuePop{std::string(queue), kNever}, {.timeout = timeout})).bytes;
  }
  Result<std::uint64_t> queue_length(std::string_view queue) {
    return counted(query(QueueLength{std::string(queue)}));
  }
  // `limit` applies to each page.
  Result<Names> list(std::string_view prefix, Limit limit = std::nullopt);
  Result<std::uint64_t> count(std::string_view prefix) {
    return counted(query(Count{std::string(prefix)}));
  }
  // Returns the number of the round, from 1. A caller that waits in several short calls must pass
  // the same `arrival`, from new_arrival(), in each, so that they count as one wait: the answer to
  // one call may arrive only in the next.
  Result<std::uint64_t> barrier(std::string_view name, std::uint32_t size, std::uint32_t member,
                                Milliseconds timeout,
                                std::optional<std::uint64_t> arrival = std::nullopt) {
    return counted(
        query(Barrier{std::string(name), size, member, arrival ? *arrival : new_arrival()},
              {.timeout = timeout}));
  }
  std::uint64_t new_arrival() { return connection_->new_arrival(); }
  struct Round {
    std::uint64_t number = 0;
    std::optional<std::uint32_t> lost_member;  // If set, no further round will complete.
  };
  // A barrier that ends permanently, for all members, if a client that waits in it disconnects.
  Result<Round> barrier_without_losses(std::string_view name, std::uint32_t size,
                                       std::uint32_t member, Milliseconds timeout);
  // Reports every change of a key that starts with `prefix`, from now until end_watch(). A lost
  // connection is dialled again; kOverflow means that changes may have been missed. Only one thread
  // at a time may take a watch's changes; any thread may end it.
  Result<std::uint32_t> watch(std::string_view prefix) { return connection_->watch(prefix); }
  // Fails with DeadlineExceeded if nothing has changed, and with Cancelled if the watch was ended.
  Result<Changed> next_change(std::uint32_t watch, Milliseconds timeout) {
    return connection_->next_change(watch, timeout);
  }
  void end_watch(std::uint32_t watch) { connection_->end_watch(watch); }
  // Returns the wait graph as text.
  Result<std::string> why() { return IVY_TRY(query(Why{})).bytes; }
  Result<void> ping() { return connection_->ping(); }

  // Makes all current and future calls return Cancelled. Callable from any thread.
  void cancel() { connection_->cancel(); }

 private:
  explicit Client(std::unique_ptr<SharedConnection> connection)
      : connection_(std::move(connection)) {}

  const std::unique_ptr<SharedConnection> connection_;
};

}  // namespace ivy::store
