// SPDX-License-Identifier: Apache-2.0
// NCCL's part of one communicator: created by all ranks in the operation that first needs it, and
// used for collectives on device memory. nccl_communicator.cc has, in this order:
//
//   creation    prepare(): facts and unique ids through the store (nccl_bootstrap.h), then
//               ncclCommInitRankConfig. split() creates a child by ncclCommSplit.
//   operations  start() calls NCCL, finish() waits or lets the operation be watched (enqueued.h)
//   waits       each ends by its deadline, by the death of a rank (trouble()), by an error that
//               NCCL reports on its own, or by abort()
//   the end     end(): waits for enqueued operations, then ncclCommFinalize and Destroy. abort():
//               ncclCommAbort, or a revoke if the survivors can shrink the handle.
//
// Calls that may block run on separate threads (abandonable_call.h); if one does not return, the
// process is tainted. A timeout inside NCCL is reported up to kRasTimeout later, if NCCL's health
// service (ras.h) answers slowly.
//
// Thread: one at a time (the communicator's lock), except that any thread may call abort().
// Lifetime: outlived by its owner.
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
#include "comm/nccl/communicator_options.h"
#include "comm/nccl/device_regions.h"
#include "comm/nccl/diagnosis.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/library.h"
#include "comm/nccl/nccl_bootstrap.h"
#include "comm/nccl/operation.h"
#include "comm/transports/shm/shared_group.h"
#include "rendezvous/client/client.h"

namespace ivy::comm::nccl {

// How long ncclCommFinalize may take.
inline constexpr std::chrono::milliseconds kFinalizeTimeout{2'000};
// How long it may take if graphs contain operations: NCCL waits until these are freed.
inline constexpr std::chrono::milliseconds kGraphTimeout{200};

// When a call returns to its caller.
enum class ReturnWhen : std::uint8_t {
  kDone,      // The device has done the operation.
  kEnqueued,  // It is on the stream; from then on it is watched.
  kCaptured,  // It is recorded into a graph, to which nothing else is added.
};

class DeviceCommunicator : private BootstrapOwner, private EnqueuedOwner {
 public:
  explicit DeviceCommunicator(DeviceCommunicatorOptions options);
  ~DeviceCommunicator() override;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // Collective. Creates the NCCL communicator, unless ranks share devices (is_shared()). Later
  // calls cost only a comparison.
  MaybeFailure prepare(int device, Deadline& deadline);
  // Returns true if ranks share devices on purpose. Their data must be moved through host memory.
  bool is_shared() const { return is_shared_; }
  bool is_prepared() const { return device_ >= 0 && handle_ != nullptr; }
  // Returns -1 until the NCCL communicator is created.
  int device() const { return device_; }

  struct Started {
    const DeviceOperation* operation = nullptr;  // Lives until finish() has returned.
    Enqueued watched;
    ReturnWhen returns_when = ReturnWhen::kEnqueued;
    int premul_sum = -1;
    std::vector<DeviceRegion> regions;
  };
  // Collective, in two halves: start() calls NCCL; finish() puts the rest on the stream, then waits
  // or lets the operation be watched. In a group of NCCL's, call finish() when the group has ended,
  // with its failure. Requires that the device is this thread's current one.
  MaybeFailure start(Started& one, bool is_grouped);
  MaybeFailure finish(Started& one, bool is_grouped, MaybeFailure failure);
  std::unique_lock<std::mutex> lock_calls() { return std::unique_lock(calls_); }
  // Collective; requires is_prepared(). NCCL maps the region of each rank into all of them, if it
  // can. All regions have the same size.
  MaybeFailure add_window(const DeviceRegion& region, Deadline& deadline);
  EnqueuedOperations& enqueued() { return enqueued_; }
  // Waits until everything on the stream is done. Requires that the device is this thread's current
  // one.
  MaybeFailure await_stream(Stream stream, int device, Deadline& deadline);

  // Collective over the ranks of this communicator; requires is_prepared(). `name` is the child's
  // name. `child` becomes null on ranks with kNoColor, and on all ranks if NCCL cannot split: the
  // group then creates its NCCL communicator without this one.
  MaybeFailure split(int color, int key, const std::string& name, Deadline& deadline,
                     std::unique_ptr<DeviceCommunicator>& child);
  // Gives a child that split() created to its communicator, before its first use.
  void join(DeviceCommunicatorOptions options);

  // Aborts all operations in progress, also on the device, and returns when they have ended, at the
  // latest after kAbortTimeout. Returns a text if the process is tainted, so that it can no longer
  // use its device.
  std::optional<std::string> abort();

  // Waits until all enqueued operations are done, each within its timeout, then ends NCCL's part.
  // No call may be in progress. Returns a failure if NCCL had to be aborted. Failures found during
  // the wait are reported to the owner as usual. Later calls do nothing.
  MaybeFailure end();

 private:
  // Memory that NCCL accesses, also from its own threads, while it creates a handle and as long as
  // the handle exists. Everything that may use the handle keeps it alive.
  struct HandleCreation {
    Handle handle = nullptr;
    std::string name;
    Config config;
    std::vector<UniqueId> ids;
    Status status = kSuccess;
    std::atomic<bool> is_aborted{false};  // Set by the thread that aborts the handle.

    // Reads the handle atomically, because NCCL's thread writes it again at the end of the
    // creation.
    Handle created() { return std::atomic_ref(handle).load(); }
  };
  MaybeFailure find_facts(int device, Deadline& deadline, RankFacts& facts);
  BootstrapOptions bootstrap_options(Deadline& deadline);
  MaybeFailure make_id(std::chrono::steady_clock::time_point deadline, UniqueId& id) override;
  MaybeFailure connect(const std::vector<UniqueId>& ids, int device, Deadline& deadline);
  std::shared_ptr<HandleCreation> begin_creation(const std::string& name);
  Failure give_up_init(HandleCreation& creation, const Failure& failure, Deadline& deadline);
  // Runs `call` as an abandonable call. It may never return, so `call` and `late` must own
  // everything that they use.
  MaybeFailure call(const std::string& what, std::chrono::steady_clock::time_point deadline,
                    std::function<void()> call, std::function<void()> late = {});

  // For bootstrap, abandonable calls and the thread that watches enqueued operations.
  MaybeFailure find_failure() override { return check_for_failure(false); }
  MaybeFailure check(const Enqueued* oldest) override;
  void enqueued_failed(const Failure& failure) override { options_.owner->device_failed(failure); }
  MaybeFailure tick(const Enqueued* oldest) override { return options_.owner->tick(oldest); }
  bool is_broken() const override { return is_broken_; }

  // Not inlined, because start_and_finish() is flattened and must remain short.
  [[gnu::noinline]] MaybeFailure await_nccl(Handle handle, Deadline& deadline,
                                            const std::string& what);
  MaybeFailure call_nccl(Started& one, bool is_grouped);
  MaybeFailure finish_nccl(const Started& one);
  [[gnu::noinline]] MaybeFailure check_for_failure(bool queries_nccl);
  // `operation` is null for a copy.
  [[gnu::noinline]] MaybeFailure await_event(Event event, Deadline& deadline,
                                             const Enqueued* operation);
  enum class Finalized : std::uint8_t { kDone, kNotYet, kFailed };
  Finalized finalize();

  DeviceCommunicatorOptions options_;
  Diagnosis diagnosis_;
  const Library* library_ = nullptr;
  const Driver* driver_ = nullptr;
  std::atomic<int> device_{-1};  // The device of the NCCL communicator.
  std::atomic<int> chosen_{-1};  // Set as soon as a handle may exist.
  bool is_shared_ = false;

  // Shared with threads that are freeing registered memory, and may therefore outlive this object.
  const std::shared_ptr<RegisteredRegions> regions_;
  std::mutex& calls_;                    // Held while NCCL is called to put something on a stream.
  std::mutex handle_mutex_;              // Held while the handle is used or freed.
  std::atomic<Handle> handle_{nullptr};  // Null before the creation and after an abort.
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> has_graphs_{false};  // Operations were recorded into graphs.
  // The creations of this communicator and of splits in progress. Guarded by handle_mutex_.
  std::vector<std::shared_ptr<HandleCreation>> creations_;

  EnqueuedOperations enqueued_;
};

// Both halves of a collective that is not in a group of NCCL's.
MaybeFailure start_and_finish(DeviceCommunicator& device, DeviceCommunicator::Started& one);

}  // namespace ivy::comm::nccl
