// SPDX-License-Identifier: Apache-2.0
// One send or receive between two ranks, and its result. point_to_point.h processes them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/contract/fingerprint.h"
#include "comm/group/core/work.h"

namespace ivy::comm {

inline constexpr std::int32_t kAnySource = -1;
inline constexpr std::int32_t kAnyTag = -1;

struct MessageStatus {
  std::int32_t source = -1;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
};

// One send or receive. The caller sets the members up to `bytes`, enters the request, waits for
// `work`, and reads `status` only when that is done. In between, every access holds PointToPoint's
// mutex. A message on a device is not entered: only its caller uses the request.
struct MessageRequest : std::enable_shared_from_this<MessageRequest> {
  bool is_send = false;
  std::int32_t peer = 0;  // kAnySource means any rank; status.source has the sender.
  std::int32_t tag = 0;
  Dtype dtype = Dtype::kU8;
  void* data = nullptr;  // Only read by a send.
  std::size_t bytes = 0;
  MessageStatus status;
  std::shared_ptr<Work> work = std::make_shared<Work>();
  std::chrono::nanoseconds timeout{0};  // `timeout` and `until` are set when the request enters.
  std::chrono::steady_clock::time_point until;
  std::size_t moved = 0;     // Bytes of header and data so far.
  std::uint64_t number = 0;  // Number among this rank's messages of the communicator.
  bool is_done = false;
  bool is_on_device = false;  // A message of NCCL, whose size and sender are known beforehand.
  // The receiver reads `data` in place. Decided once, when a send reaches the front of its stream,
  // because each loan counts, even if no header has announced it yet.
  std::optional<bool> is_lent;
  bool is_slept_on = false;  // A thread sleeps until it is done.
};

}  // namespace ivy::comm
