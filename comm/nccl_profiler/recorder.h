// SPDX-License-Identifier: Apache-2.0
// Records this process's activity in NCCL's communicators on its status page: the communicators,
// and the progress of NCCL's events. There is one per process, because NCCL has one plug-in.
//
// Thread: any. A forked child writes nothing, because the page belongs to its parent. Lifetime: the
// process's.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "comm/nccl_profiler/handle.h"
#include "comm/nccl_profiler/profiler_interface.h"
#include "comm/nccl_profiler/track.h"
#include "proto/contract/status.h"
#include "proto/wire/status_page.h"

namespace ivy::nccl_profiler {

struct CommunicatorFacts {
  std::uint64_t hash = 0;      // Its number, the same on all its ranks; 0 if not known yet.
  std::string_view name = {};  // The name that the program gave it; may be empty.
  int rank = 0;
  int ranks = 0;
};

class Recorder {
 public:
  using RequestPage = Result<comm_status::StatusPage> (*)();

  // Reads IVY_NCCL_PROFILER. "off" records nothing. "kernels" also records the device's progress,
  // by events of NCCL's kernels, for which NCCL's proxy checks each channel. Any other value
  // records calls, and waits for peers.
  static std::uint64_t mask_of(const char* choice);

  explicit Recorder(RequestPage request_page) : request_page_(request_page) {}
  ~Recorder();  // No thread may use a handle any more.
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Returns the events that NCCL should report, 0 without a page, and sets the context.
  std::uint64_t open(const CommunicatorFacts& facts, Handle& context);
  void close(const Handle& context);

  // `facts` describes the communicator in versions 1 to 3, which report it only now; otherwise
  // null.
  Handle enter(const Handle& context, const Call& call, const CommunicatorFacts* facts);
  Handle start_kernel(const Handle& operation);
  Handle start_proxy(const Handle& operation, const Proxy& proxy);
  Handle start_step(const Handle& proxy, int step) const;
  void stop(const Handle& handle);
  void record(const Handle& step, int state);

  // Called in a forked child, before anything else.
  void forget_page() { slot_.store(nullptr, std::memory_order_relaxed); }

 private:
  struct Communicator {
    std::atomic<bool> has_name{false};
    std::string name;
    Track collectives;
    Track messages;
  };

  bool has_page();
  std::optional<std::uint32_t> take_row();
  std::optional<std::uint8_t> reserve_index();
  void give_back(Track& track);
  void give_name(Communicator& communicator, const CommunicatorFacts& facts);
  void open_messages(Communicator& communicator);
  Communicator* communicator_of(const Handle& handle) const;
  Track* track_of(const Handle& handle) const;
  bool is_known(const Handle& handle) const {
    return slot_.load(std::memory_order_acquire) != nullptr &&
           handle.process == process_.load(std::memory_order_relaxed);
  }

  const RequestPage request_page_;
  std::mutex mutex_;  // Held while communicators are opened, closed and named.
  std::atomic<comm_status::Slot*> slot_{nullptr};
  std::atomic<std::uint16_t> process_{0};
  std::atomic<std::uint64_t> mask_{0};
  std::uint64_t rows_ = 0;  // One bit for each row in use.
  // Created when first needed, and kept for reuse, because NCCL's threads may still use a handle of
  // a communicator that is closed.
  std::atomic<Communicator*> communicators_[comm_status::kCommunicators] = {};
};

}  // namespace ivy::nccl_profiler
