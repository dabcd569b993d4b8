// SPDX-License-Identifier: Apache-2.0
// The reason why a communicator is broken. The record is the same on every rank. It travels between
// processes in shared memory and over connections, so it is plain bytes of fixed size.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

namespace ivy::comm {

// The values match ivy_failure_kind.
enum class FailureKind : std::uint32_t {
  kNone = 0,
  kRankDied = 1,
  kHostLost = 2,
  kMismatch = 3,
  kTimeout = 4,
  kAborted = 5,
  kTransport = 6,
  kOther = 7,
};

struct Failure {
  FailureKind kind = FailureKind::kNone;
  std::int32_t code = 0;   // An ivy_code of the C interface.
  std::int32_t rank = -1;  // The world rank to blame, or -1.
  std::int32_t pid = 0;
  std::int32_t signal = 0;
  std::int32_t exit_code = -1;
  std::uint64_t sequence = 0;  // Number of the operation that found the failure.
  char host[64] = {};
  char operation[32] = {};
  char text[512] = {};  // Ends with NUL; truncated if too long.

  bool is_set() const { return kind != FailureKind::kNone; }
};
static_assert(std::is_trivially_copyable_v<Failure>);

// A failure or nothing. An operation on a few bytes passes several of these on. An empty
// std::optional would be copied with its 648 bytes; an empty MaybeFailure is a null pointer. Copies
// share the immutable failure, so a copy does not allocate either.
class MaybeFailure {
 public:
  MaybeFailure() = default;
  MaybeFailure(std::nullopt_t /*nothing*/) {}  // NOLINT
  MaybeFailure(const Failure& failure)
      : one_(std::make_shared<const Failure>(failure)) {}  // NOLINT

  // Moves error paths out of line, so that successful calls touch less memory.
  bool has_value() const { return __builtin_expect(one_ != nullptr, false); }
  explicit operator bool() const { return has_value(); }
  // Requires has_value().
  const Failure& operator*() const { return *one_; }
  const Failure* operator->() const { return one_.get(); }

 private:
  std::shared_ptr<const Failure> one_;
};

void set_text(Failure& failure, std::string_view text);
void set_host(Failure& failure, std::string_view host);
void set_operation(Failure& failure, std::string_view operation);
[[gnu::cold]] Failure make_failure(FailureKind kind, std::string_view text);
// Converts an exception to a failure. A lack of memory or threads becomes ResourceExhausted.
[[gnu::cold]] Failure failure_of(const std::exception& problem);

}  // namespace ivy::comm
