// The result type of every function that can fail in an expected way. A bug aborts (IVY_ASSERT),
// exceptions stay inside third-party libraries and are caught in the file that calls them.
//
// Thread: any. Everything here is a value.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace ivy {

// Numbered as gRPC's, so that a conversion is a cast. Each is defined by what the caller does next.
enum class Code {
  kCancelled = 1,           // The caller's side cancelled it: pass it on, print nothing.
  kInvalidArgument = 3,     // The input is wrong wherever it is tried: show it to the user.
  kDeadlineExceeded = 4,    // It may work later: name what was waited for.
  kNotFound = 5,            // The named thing does not exist.
  kAlreadyExists = 6,       // Another owner has it: never take it over silently.
  kPermissionDenied = 7,    // Another person has to allow it.
  kResourceExhausted = 8,   // A limit was reached: name the limit.
  kFailedPrecondition = 9,  // Something else must be put right first: say what.
  kAborted = 10,            // Lost a race: the caller may start over.
  kInternal = 13,           // The operating system broke a promise.
  kUnavailable = 14,        // A peer is away: retry with a bound.
  kDataLoss = 15,           // Bytes are not what they should be: drop the connection.
  kUnauthenticated = 16,    // The peer did not prove its identity.
};

// An expected failure. `message` reads outermost first ("host node7: start worker: ..."), names the
// failing value, and ends without a full stop; `fix` is what the user can do (may be empty).
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string fix = {};

  // Returns this error with "noun: " in front of the message. Each layer adds its noun once.
  [[nodiscard]] Error context(const std::string& noun) const {
    return Error{code, noun + ": " + message, fix};
  }
};

// Error whose message ends with the text of an errno value: "open /x: No such file or directory".
Error errno_error(Code code, const std::string& what, int errno_value);

// A T, or the Error that kept us from having one.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: by intention
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return __builtin_expect(state_.index() == 0, true); }
  explicit operator bool() const { return ok(); }
  // Calling value() on an error, or error() on a value, is a bug and aborts.
  T& value() & { return *checked(std::get_if<0>(&state_)); }
  const T& value() const& { return *checked(std::get_if<0>(&state_)); }
  T&& value() && { return std::move(*checked(std::get_if<0>(&state_))); }
  const Error& error() const { return *checked(std::get_if<1>(&state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  template <class P>
  static P* checked(P* pointer);
  std::variant<T, Error> state_;
};

// A success that carries no value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: by intention
  bool ok() const { return __builtin_expect(!error_.has_value(), true); }
  explicit operator bool() const { return ok(); }
  const Error& error() const;

 private:
  std::optional<Error> error_;
};

// Prints the expression and its place to standard error and aborts. Never for input or peers.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace ivy

#define IVY_ASSERT(condition) \
  ((condition) ? (void)0 : ::ivy::assertion_failed(#condition, __FILE__, __LINE__))

// auto x = IVY_TRY(f());  returns f's error from the calling function, which returns a Result.
// For Result<void>: IVY_CHECK(f());
// Not among the arguments of `new`, whose memory would be lost.
#define IVY_TRY(expression)                                    \
  __extension__({                                              \
    auto ivy_try_result_ = (expression);                       \
    if (!ivy_try_result_.ok()) return ivy_try_result_.error(); \
    std::move(ivy_try_result_).value();                        \
  })
#define IVY_CHECK(expression)                                      \
  do {                                                             \
    auto ivy_check_result_ = (expression);                         \
    if (!ivy_check_result_.ok()) return ivy_check_result_.error(); \
  } while (false)

template <class T>
template <class P>
P* ivy::Result<T>::checked(P* pointer) {
  IVY_ASSERT(pointer != nullptr);
  return pointer;
}
