// SPDX-License-Identifier: Apache-2.0
// NCCL's part of one communicator: made when its ranks first need it, by all of them in the same
// operation, and used for collectives on device memory. Every wait in here ends: by its deadline,
// by the death of a rank (`trouble`), by an error that NCCL reports on its own, or by break_with().
//
// Making: facts and unique ids through the store (ready.h), ncclCommInitRankConfig. A communicator
// that was split from one which had NCCL already gets it by ncclCommSplit. Calls that may block are
// made on threads of their own (apart.h). Ending: what was enqueued, then Finalize, polled,
// Destroy; where anything failed, ncclCommAbort on a thread of its own too: after kAbortPatience
// the process is tainted. A timeout inside NCCL is told up to kRasPatience later where NCCL's
// health service (ras.h) is slow to say what it knows.
//
// Thread: one at a time (the communicator's lock), but break_with(): any. Lifetime: ends before
// what its callbacks refer to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/bootstrap.h"
#include "comm/nccl/communicator_options.h"
#include "comm/nccl/device_regions.h"
#include "comm/nccl/diagnosis.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/library.h"
#include "comm/nccl/operation.h"
#include "comm/transports/shm/shared_group.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

// How long Finalize may take.
inline constexpr std::chrono::milliseconds kFinalizePatience{2'000};
// The same where graphs hold operations: NCCL waits for their end.
inline constexpr std::chrono::milliseconds kGraphPatience{200};

// How a call ends for its caller.
enum class Ending : std::uint8_t {
  kDone,      // When the device has done the operation.
  kEnqueued,  // When it is on the stream; it is watched from there on.
  kCaptured,  // When it is recorded into a graph. Nothing else is put into that.
};

class DeviceCommunicator {
 public:
  explicit DeviceCommunicator(DeviceCommunicatorOptions options);
  ~DeviceCommunicator();
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // Collective. Nothing: it is there, or is_shared(). Later calls cost a comparison.
  MaybeFailure prepare(int device, Deadline& deadline);
  // Ranks share devices on purpose: use host memory instead.
  bool is_shared() const { return is_shared_; }
  bool is_prepared() const { return device_ >= 0 && handle_ != nullptr; }
  // Is -1 until NCCL's part is made.
  int device() const { return device_; }

  struct Started {
    const DeviceOperation* operation = nullptr;  // Lives until finish() has returned.
    Enqueued watched;
    Ending ending = Ending::kEnqueued;
    int premul_sum = -1;
    std::vector<DeviceRegion> regions;
  };
  // Collective, in two halves: start() calls NCCL, and finish() puts the rest on the stream, and
  // waits or lets it be watched. In a group of NCCL's, finish() is called when the group has ended,
  // with its failure. The device is this thread's.
  MaybeFailure start(Started& one, bool is_grouped);
  MaybeFailure finish(Started& one, bool is_grouped, MaybeFailure failure);
  std::unique_lock<std::mutex> lock_calls() { return std::unique_lock(calls_); }
  // Collective, of a communicator that is prepared: NCCL maps the region of each rank into all of
  // them, where it can. Each gives as much memory.
  MaybeFailure add_window(const DeviceRegion& region, Deadline& deadline);
  EnqueuedOperations& enqueued() { return enqueued_; }
  // Waits until everything on the stream is done. The device is this thread's.
  MaybeFailure await_stream(Stream stream, int device, Deadline& deadline);

  // Collective over the ranks of this communicator, which has to be prepared. `child` is null on
  // ranks with kNoColor, and where NCCL cannot split: then the group makes its own. `name`: the
  // child's.
  MaybeFailure split(int color, int key, const std::string& name, Deadline& deadline,
                     std::unique_ptr<DeviceCommunicator>& child);
  // Joins a child that split() made to its communicator, before its first use.
  void join(DeviceCommunicatorOptions options);

  // Ends everything that is under way, on the device too, and returns when it has ended, at the
  // latest after kAbortPatience. The text: the process is tainted, its device does not come back.
  std::optional<std::string> break_with();

  // Waits until all enqueued operations are done, each within its timeout, then ends NCCL's part.
  // No call may be in progress. Returns a failure if NCCL had to be aborted. Failures found during
  // the wait are reported through `found` as usual. Later calls do nothing.
  MaybeFailure end();

 private:
  // Memory that NCCL accesses while it creates a handle and as long as the handle exists, also from
  // its own threads: kept alive by every holder that may still let them run.
  struct Making {
    Handle handle = nullptr;
    std::string name;
    Config config;
    std::vector<UniqueId> ids;
    Status status = kSuccess;
    std::atomic<bool> is_aborted{false};  // Set by the thread that aborts the handle.

    // NCCL's thread writes it once more when it is done with the making.
    Handle made() { return std::atomic_ref(handle).load(); }
  };
  std::shared_ptr<Making> begin_making(const std::string& name);
  MaybeFailure find_facts(int device, Deadline& deadline, RankFacts& facts);
  MaybeFailure make_id(Deadline& deadline, UniqueId& id);
  MaybeFailure call(const std::string& what, Deadline& deadline, std::function<void()> call,
                    std::function<void()> late = {});
  BootstrapOptions ready_options(Deadline& deadline);
  MaybeFailure connect(const std::vector<UniqueId>& ids, int device, Deadline& deadline);
  Failure give_up_init(Making& making, const Failure& failure, Deadline& deadline);
  // Kept out of start_and_finish(), which is one piece of code.
  [[gnu::noinline]] MaybeFailure await_nccl(Handle handle, Deadline& deadline,
                                            const std::string& what);
  MaybeFailure call_nccl(Started& one, bool is_grouped);
  MaybeFailure finish_nccl(const Started& one);
  [[gnu::noinline]] MaybeFailure look_for_trouble(bool asks_nccl);
  [[gnu::noinline]] MaybeFailure await_event(Event event, Deadline& deadline,
                                             const std::function<Failure()>& late);
  enum class Finalized : std::uint8_t { kDone, kNotYet, kFailed };
  Finalized finalize();

  DeviceCommunicatorOptions options_;
  Diagnosis diagnosis_;
  const Library* library_ = nullptr;
  const Driver* driver_ = nullptr;
  std::atomic<int> device_{-1};  // The device of NCCL's part.
  std::atomic<int> chosen_{-1};  // Set as soon as a handle may exist.
  bool is_shared_ = false;

  // Outlives this object where memory is just being freed.
  const std::shared_ptr<RegisteredRegions> regions_;
  std::mutex& calls_;                    // Held while NCCL is called to put something on a stream.
  std::mutex handle_mutex_;              // Held while the handle is used or freed.
  std::atomic<Handle> handle_{nullptr};  // Null: not made, or aborted.
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> has_graphs_{false};  // Operations were recorded into graphs.
  // The communicator's own, and those of splits in progress. Guarded by handle_mutex_.
  std::vector<std::shared_ptr<Making>> makings_;

  EnqueuedOperations enqueued_;
};

// Both halves of a collective that is in no group of NCCL's.
MaybeFailure start_and_finish(DeviceCommunicator& device, DeviceCommunicator::Started& one);

}  // namespace ivy::comm::nccl
