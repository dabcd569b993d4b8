// Why a communicator is broken: one record, the same on every rank that tells it. It travels
// between processes in shared memory and on the wire, so it is plain bytes of fixed size.
//
// Thread: any; a value.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

namespace ivy::comm {

// The numbers are those of ivy_failure_kind.
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
  std::int32_t code = 0;   // As the C interface numbers it, ivy_code.
  std::int32_t rank = -1;  // The world rank to blame, or -1.
  std::int32_t pid = 0;
  std::int32_t signal = 0;
  std::int32_t exit_code = -1;
  std::uint64_t sequence = 0;  // Number of the operation in which it was found.
  char host[64] = {};
  char operation[32] = {};
  char text[512] = {};  // Ends with NUL; cut where it is too long.

  bool is_set() const { return kind != FailureKind::kNone; }
};
static_assert(std::is_trivially_copyable_v<Failure>);

// A failure, or nothing. Nothing is a null pointer: an operation of some bytes passes several of
// them on, and an empty std::optional would be copied with its 648 bytes. Copies share the failure,
// which does not change, so that a copy needs no memory either.
class MaybeFailure {
 public:
  MaybeFailure() = default;
  MaybeFailure(std::nullopt_t /*nothing*/) {}  // NOLINT
  MaybeFailure(const Failure& failure)
      : one_(std::make_shared<const Failure>(failure)) {}  // NOLINT

  // Code that deals with a failure is laid apart, so that calls which go well touch less memory.
  bool has_value() const { return __builtin_expect(one_ != nullptr, false); }
  explicit operator bool() const { return has_value(); }
  // Only where there is one.
  const Failure& operator*() const { return *one_; }
  const Failure* operator->() const { return one_.get(); }

 private:
  std::shared_ptr<const Failure> one_;
};

void set_text(Failure& failure, std::string_view text);
void set_host(Failure& failure, std::string_view host);
void set_operation(Failure& failure, std::string_view operation);
[[gnu::cold]] Failure make_failure(FailureKind kind, std::string_view text);
// Turns an exception into a failure: memory or threads that cannot be had are ResourceExhausted.
[[gnu::cold]] Failure failure_of(const std::exception& problem);

}  // namespace ivy::comm
