// SPDX-License-Identifier: Apache-2.0
// Chooses how many bytes of a session a transport of messages (agents) puts into the next message.
// A reader receives a message only when it is complete: at 256 kbit/s, 64 KiB take two seconds and
// look like silence. So messages grow only while the connection transfers more per second than the
// buffers on the path can hold. The time of a single write does not matter, because these buffers
// absorb it.
//
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ivy::session {

class MessageSize {
 public:
  static constexpr std::size_t kMin = 4u << 10;
  static constexpr std::size_t kMax = 64u << 10;  // agent.proto allows no larger message.

  std::size_t bytes() const { return bytes_; }
  // Call when `bytes` were written and the transport accepts the next message.
  void written(std::size_t bytes, std::int64_t now_ns) {
    carried_ += bytes;
    if (carried_ >= kEnough) return begin_period(std::min(bytes_ * 2, kMax), now_ns);
    if (now_ns - since_ns_ > kPeriodNs) begin_period(std::max(bytes_ / 2, kMin), now_ns);
  }

 private:
  static constexpr std::size_t kEnough = 512u << 10;
  static constexpr std::int64_t kPeriodNs = 1'000'000'000;

  void begin_period(std::size_t bytes, std::int64_t now_ns) {
    bytes_ = bytes;
    carried_ = 0;
    since_ns_ = now_ns;
  }

  std::size_t bytes_ = 4 * kMin;
  std::size_t carried_ = 0;
  std::int64_t since_ns_ = 0;
};

}  // namespace ivy::session
