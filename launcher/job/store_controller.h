// SPDX-License-Identifier: Apache-2.0
// Controls the job's store (rendezvous/server), which the supervisor of the plan's first host runs.
// This class sends the orders: to open a store, when the job starts, when another host becomes the
// first one, and after a store was lost; and to begin each generation, which drops the keys of the
// last one. Thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/job/core/job_context.h"

namespace ivy {

class StoreController {
 public:
  explicit StoreController(JobContext& job) : job_(job) {}

  // Orders the first host of the plan to open the store, unless its store is open already.
  void open_on_first_host();
  // A host has joined a job that runs: its workers may use torch's protocol from the next
  // generation on.
  void admit(const HostRecord& host);
  // The host has opened the store. Returns false if it could not; the job has been rejected then.
  bool opened(std::size_t index, const StoreOpened& opened);
  // The store has exited. Ends the attempt; with --max-restarts, another one with a new store may
  // follow. Between two attempts a new store is opened, because only an idle one was lost.
  void lost(std::size_t index, const StoreLost& lost);
  // Orders the store to begin a generation. Call when all hosts have reported that no worker is
  // left that could still write to the store. No worker may start before the store has confirmed it
  // (is_beginning()).
  void begin_generation(std::uint32_t generation);
  // The store has begun a generation.
  void begun(const GenerationBegun& begun);
  // True while a generation has been ordered and not confirmed.
  bool is_beginning() const { return is_beginning_; }
  // Returns the name of the host that has the last order.
  std::string host_name() const;
  // Call after a takeover: the previous launcher has opened the store of the plan's first host.
  void take_over();

 private:
  Command open_command(std::uint32_t generation) const;
  // Also records the host and the generation of this order.
  void send_to_first_host(std::uint32_t generation, const Command& command);

  JobContext& job_;
  std::optional<std::size_t> host_;  // The host that has the last order; empty without a store.
  std::uint32_t generation_ = 0;     // The generation in the last order.
  bool is_beginning_ = false;        // BeginGeneration was sent and has not been confirmed.
};

}  // namespace ivy
