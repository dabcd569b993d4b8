// SPDX-License-Identifier: Apache-2.0
// Answers CollectStacks: where this host's workers are. stack_ladder.h chooses the tools and their
// order. Everything is bounded: four requests at a time, four debuggers per request, each with a
// deadline, 256 KiB per stack; the answer leaves in pieces, so that heartbeats do not wait.
//
// Thread: the supervisor's loop, which it never blocks: a worker is polled every few milliseconds,
// not waited for. Lifetime: kills its debuggers.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/workers/worker.h"
#include "proto/contract/env.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class StackCollector {
 public:
  static constexpr std::size_t kMaxQuestions = 4;
  static constexpr std::size_t kMaxTools = 4;

  struct Handlers {
    std::function<void(const Event&)> send;
    // Bytes that wait for the launcher's acknowledgement.
    std::function<std::uint64_t()> waiting_bytes;
    // Called with a child that is a debugger, not a worker.
    std::function<void(pid_t)> spare;
    // Adds the workers' positions in NCCL's communicators.
    std::function<void(HostEvidence&)> add_nccl_places = [](HostEvidence&) {};
  };
  struct Subject {
    std::uint32_t rank = 0;
    pid_t pid = -1;
    bool lives = false;
  };
  // The properties that the workers of this generation were started with.
  struct Group {
    JobDirectory directory;
    std::uint32_t generation = 0;
    Environment environment;
  };

  // `blocking` searches PATH for debuggers.
  StackCollector(boost::asio::io_context& loop, BlockingPool& blocking, Handlers handlers);
  ~StackCollector();
  StackCollector(const StackCollector&) = delete;
  StackCollector& operator=(const StackCollector&) = delete;

  void collect(const CollectStacks& request, const std::vector<std::unique_ptr<Worker>>& workers,
               const Group& group);

 private:
  class Question;
  void wait_tick();
  void tick();

  BlockingPool& blocking_;
  Handlers handlers_;
  boost::asio::steady_timer timer_;
  bool is_ticking_ = false;
  std::vector<std::unique_ptr<Question>> questions_;
};

}  // namespace ivy
