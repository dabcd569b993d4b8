// SPDX-License-Identifier: Apache-2.0
// Building blocks of the C++ interface: errors, element types, asynchronous operations.
#pragma once

#include <ivycomm.h>

#include <chrono>
#include <complex>
#include <memory>
#include <stdexcept>
#include <type_traits>

namespace ivycomm {

// A failed call: its code, its text (what()) and the rank that caused it.
class Error : public std::runtime_error {
 public:
  explicit Error(int code) : std::runtime_error(ivy_last_error()), code_(code) {
    failure_.struct_bytes = sizeof failure_;
    ivy_last_failure(&failure_);
  }
  int code() const { return code_; }
  const ivy_failure& failure() const { return failure_; }

 private:
  int code_;
  ivy_failure failure_{};
};

inline void check(int code) {
  if (code != IVY_OK) throw Error(code);
}

template <class T>
constexpr int dtype_number() {
  if constexpr (std::is_same_v<T, bool>) return IVY_BOOL;
  if constexpr (std::is_same_v<T, float>) return IVY_F32;
  if constexpr (std::is_same_v<T, double>) return IVY_F64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return IVY_C64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return IVY_C128;
  if constexpr (!std::is_integral_v<T>) return -1;
  constexpr int kPlace = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return IVY_I8 + 2 * kPlace + (std::is_unsigned_v<T> ? 1 : 0);
}
// The element type of T. C++20 has no 16-bit or 8-bit floating-point types; specialise this
// variable for your own.
template <class T>
inline constexpr int kDtype = dtype_number<T>();

// An asynchronous operation. The destructor waits for it.
class Work {
 public:
  struct Timing {
    double queued = 0;  // Seconds from the call to its start.
    double ran = 0;     // From its start to its end.
  };

  explicit Work(ivy_work* work) : work_(work) {}
  // Returns false if the operation still runs after this time.
  bool wait(std::chrono::milliseconds at_most) {
    const int code = ivy_work_wait(work_.get(), at_most.count());
    // Distinguish this wait's deadline from the operation's own deadline.
    if (code == IVY_DEADLINE_EXCEEDED) return test();
    check(code);
    return true;
  }
  void wait() { check(ivy_work_wait(work_.get(), IVY_FOREVER)); }
  // Returns whether the operation is done. Throws its error if it failed.
  bool test() {
    int done = 0;
    check(ivy_work_test(work_.get(), &done));
    return done != 0;
  }
  void abort() { check(ivy_work_abort(work_.get())); }
  // Requires that the operation is done.
  Timing timing() const {
    Timing timing;
    check(ivy_work_timing(work_.get(), &timing.queued, &timing.ran));
    return timing;
  }
  // Returns the message of a receive that is done.
  ivy_message message() const {
    ivy_message message{sizeof message, 0, 0, 0};
    check(ivy_work_message(work_.get(), &message));
    return message;
  }

 private:
  struct Free {
    void operator()(ivy_work* work) const { ivy_work_free(work); }
  };
  std::unique_ptr<ivy_work, Free> work_;
};

}  // namespace ivycomm
