// SPDX-License-Identifier: Apache-2.0
// Compares the operations on device memory that ranks enqueued without synchronizing. About once a
// second, each rank that has called such operations stores a record of its calls and compares it
// with that of another rank. A rank whose operation does not finish compares with up to 64 ranks.
// Nothing is exchanged while nothing is called.
//
//   <key>/<R>   the DeviceRecord of rank R of the communicator
//
// Thread: any. tick() is called by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "comm/contract/device_log.h"
#include "comm/contract/failure.h"
#include "comm/group/core/membership.h"
#include "comm/join/fail_fast_store.h"
#include "comm/nccl/enqueued.h"

namespace ivy::comm {

// When the ranks of a communicator compare their operations on devices; the same on all ranks.
enum class DeviceCheckMode : std::uint8_t {
  kEvery,   // They synchronize before each operation, on their processors.
  kLagged,  // They compare about a second later, or as soon as an operation does not finish.
  kFirst,   // They synchronize only for the first one.
};
// Reads IVY_DEVICE_CHECK; unknown values mean kLagged.
DeviceCheckMode device_check_mode();

class DeviceCheck {
 public:
  // All arguments must outlive it. `key` is the prefix of its keys.
  DeviceCheck(const Membership& ranks, FailFastStore& store, std::string key);

  // Records an operation that is enqueued. Returns its number.
  std::uint64_t count_enqueued(const OperationShape& shape, bool is_recorded);
  // Sets shape.ahead, which the ranks compare when they synchronize.
  void begin_synchronized(OperationShape& shape);
  void end_synchronized();

  // The last operation that was enqueued; `number` is 0 if there was none.
  struct LastOperation {
    std::uint64_t number = 0;
    OperationShape shape;
  };
  LastOperation last_operation();

  // Called periodically by the thread that watches the device. `oldest` is the operation that it
  // waits for, or null.
  MaybeFailure tick(const nccl::Enqueued* oldest);
  // Returns whether the ranks of this communicator compare at all.
  bool compares_later() const { return ranks_.size() > 1 && mode_ == DeviceCheckMode::kLagged; }
  // Publishes this rank's calls and compares them with the others' immediately. Any thread.
  MaybeFailure find_difference();
  // Names the ranks that have not called the operation: "rank 3 has called 16 of them".
  std::string why_late(const nccl::Enqueued& operation);

 private:
  // Returns nothing if that rank has stored no record, or if the store did not answer.
  std::optional<DeviceRecord> read(std::int32_t rank);
  // Return how this rank's calls differ, or nothing if no difference was found.
  MaybeFailure compare_with(std::int32_t rank);
  MaybeFailure compare_with_all();
  void publish_record(std::uint64_t oldest);
  std::string explain_no_difference(std::uint64_t recorded, std::int32_t other,
                                    std::uint64_t other_recorded) const;
  Failure failure_of(const DeviceDifference& difference, std::int32_t other) const;
  std::chrono::steady_clock::duration pause() const;

  const Membership& ranks_;
  FailFastStore& store_;
  const std::string key_;
  const DeviceCheckMode mode_ = device_check_mode();

  std::mutex mutex_;
  DeviceLog log_;            // log_ and ahead_ are guarded by mutex_.
  std::uint64_t ahead_ = 0;  // Operations since the ranks last synchronized.
  // Used only by the thread that watches the device:
  std::uint64_t compared_ = 0;                 // Number of calls at the last exchange.
  std::atomic<std::uint64_t> late_number_{0};  // The operation that does not finish; any thread.
  std::chrono::steady_clock::time_point late_since_;
  std::chrono::steady_clock::time_point exchanged_at_;
};

}  // namespace ivy::comm
