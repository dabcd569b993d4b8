// When an operation is given up.
//
// Thread: the operation's.
#pragma once

#include <chrono>
#include <optional>

namespace ivy::comm {

// The clock is read at the first wait that takes longer, not before.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds timeout) : timeout_(timeout) {}
  // When the operation began to wait.
  std::chrono::steady_clock::time_point since() {
    if (!since_) since_ = std::chrono::steady_clock::now();
    return *since_;
  }
  std::chrono::nanoseconds left() {
    const auto waited = std::chrono::steady_clock::now() - since();
    return timeout_ - waited;
  }

 private:
  std::chrono::nanoseconds timeout_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace ivy::comm
