// SPDX-License-Identifier: Apache-2.0
// Answers CollectStacks with the stacks and states of this host's workers. stack_methods.h chooses
// the tools and their order. Everything is bounded: four requests at a time; four debuggers per
// request, each with a deadline; 256 KiB per stack. The answer is sent in pieces, so that
// heartbeats are not delayed.
//
// Thread: the supervisor's loop, which it never blocks: a worker is polled every 20 ms, not waited
// for. Lifetime: kills its debuggers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/workers/worker.h"
#include "proto/contract/env.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Implemented by Supervisor (supervisor.cc in ../supervisor).
class StackCollectorOwner {
 public:
  virtual void send_stacks(const Event& event) = 0;
  // Returns the number of bytes that wait for the launcher's acknowledgement.
  virtual std::uint64_t waiting_bytes() = 0;
  // Called after a child was started that is a debugger, not a worker.
  virtual void debugger_started(pid_t pid) = 0;
  // Adds the workers' positions in NCCL's communicators.
  virtual void add_nccl_positions(HostEvidence& evidence) = 0;

 protected:
  ~StackCollectorOwner() = default;
};

class StackCollector {
 public:
  static constexpr std::size_t kMaxRequests = 4;
  static constexpr std::size_t kMaxTools = 4;

  struct Subject {
    std::uint32_t rank = 0;
    pid_t pid = -1;
    bool is_running = false;
  };
  // The properties that the workers of this generation were started with.
  struct Group {
    JobDirectory directory;
    std::uint32_t generation = 0;
    Environment environment;
  };

  // `blocking` searches PATH for debuggers.
  StackCollector(boost::asio::io_context& loop, BlockingPool& blocking, StackCollectorOwner& owner);
  ~StackCollector();
  StackCollector(const StackCollector&) = delete;
  StackCollector& operator=(const StackCollector&) = delete;

  void collect(const CollectStacks& request, const std::vector<std::unique_ptr<Worker>>& workers,
               const Group& group);

 private:
  class Collection;
  void wait_tick();
  void tick();

  BlockingPool& blocking_;
  StackCollectorOwner& owner_;
  boost::asio::steady_timer timer_;
  bool is_ticking_ = false;
  std::vector<std::unique_ptr<Collection>> collections_;
};

}  // namespace ivy
