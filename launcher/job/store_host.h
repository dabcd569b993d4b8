// SPDX-License-Identifier: Apache-2.0
// The host of a job's store: the first host's supervisor opens it. A new one is opened when another
// host becomes the first, and for the attempt after a store was lost. Every generation is begun
// there once. Thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/job/job_context.h"

namespace ivy {

class StoreHost {
 public:
  explicit StoreHost(JobContext& job) : job_(job) {}

  // Has the first host of the plan listen, unless its store is open already.
  void open();
  // False: it cannot listen, and the job has been refused.
  bool opened(std::size_t index, const StoreOpened& opened);
  // Ends the attempt; --max-restarts may start another one, which has a new store.
  void lost(std::size_t index, const StoreLost& lost);
  // All hosts have reported that no worker is left that could still write to the store. No worker
  // may start before the store has dropped the keys of the last generation.
  void begin_generation(std::uint32_t generation);
  void begun(const GenerationBegun& begun);
  bool is_beginning() const { return begins_; }
  // The host that is to begin a generation, or to open the store.
  std::string host_name() const;
  // The previous launcher has opened it.
  void take_over();

 private:
  Command open_command(std::uint32_t generation) const;
  void tell(std::uint32_t generation, const Command& command);

  JobContext& job_;
  std::optional<std::size_t> host_;  // The host that got the last order about the store...
  std::uint32_t generation_ = 0;     // ...and the generation in that order.
  bool begins_ = false;              // Between BeginGeneration and its answer.
};

}  // namespace ivy
