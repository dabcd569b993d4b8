// SPDX-License-Identifier: Apache-2.0
// The result type of functions that can fail in an expected way. A bug aborts (IVY_ASSERT);
// exceptions of third-party libraries are caught in the file that calls them.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace ivy {

// The numbers are gRPC's, so that a conversion is a cast. Each code implies how the caller should
// react.
enum class Code {
  kCancelled = 1,           // Cancelled by the caller's side; pass it on and print nothing.
  kInvalidArgument = 3,     // Wrong input, so a retry cannot help; show it to the user.
  kDeadlineExceeded = 4,    // A retry may succeed; name what is missing.
  kNotFound = 5,            // The named thing does not exist.
  kAlreadyExists = 6,       // It has another owner; never take it over silently.
  kPermissionDenied = 7,    // Needs permission from another person.
  kResourceExhausted = 8,   // A limit was reached; name the limit.
  kFailedPrecondition = 9,  // Something else must be fixed first; say what.
  kAborted = 10,            // Lost a race; the caller may start over.
  kInternal = 13,           // The operating system broke a promise.
  kUnavailable = 14,        // A peer is unreachable; retry with a bound.
  kDataLoss = 15,           // Corrupt bytes; drop the connection.
  kUnauthenticated = 16,    // The peer did not prove its identity.
};

// An expected failure. `message` reads from the outermost context inwards ("host node7: start
// worker: ..."), names the failing value, and has no final full stop; `fix` tells the user what to
// do (may be empty).
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string fix = {};

  // Returns this error with "noun: " in front of the message. Each layer adds its noun once.
  [[nodiscard]] Error context(const std::string& noun) const {
    return Error{code, noun + ": " + message, fix};
  }
};

// Returns an Error whose message ends with the text of an errno value: "open /x: No such file or
// directory".
Error errno_error(Code code, const std::string& what, int errno_value);

// A T, or the Error that prevented it.
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

// Success without a value, or an Error.
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

// Prints the expression and its location to standard error and aborts. Never used for input or
// peers.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace ivy

#define IVY_ASSERT(condition) \
  ((condition) ? (void)0 : ::ivy::assertion_failed(#condition, __FILE__, __LINE__))

// auto x = IVY_TRY(f());  returns f's error from the calling function, which returns a Result.
// For Result<void>: IVY_CHECK(f()); it returns the error, and never aborts.
// Do not use it in the arguments of `new`: the memory would leak.
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
