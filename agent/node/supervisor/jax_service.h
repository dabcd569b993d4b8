// SPDX-License-Identifier: Apache-2.0
// JAX's coordination service beside the workers of the first host (--app jax-service): a child of
// the supervisor, started with the workers' interpreter because it needs their jaxlib. Rank 0 may
// die and come back, which it could not if it served by itself. A generation has a service of its
// own.
//
// Thread: the supervisor's loop. Lifetime: ends the process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "agent/node/supervisor/supervisor_start.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class JaxService {
 public:
  struct Handlers {
    std::function<void(const Event&)> send;
    std::function<void(pid_t)> spare;  // A process that is not a worker.
  };

  JaxService(const SupervisorStart& start, Handlers handlers)
      : start_(start), handlers_(std::move(handlers)) {}
  ~JaxService() { end(); }
  JaxService(const JaxService&) = delete;
  JaxService& operator=(const JaxService&) = delete;

  // Starts it if the plan requires it. `environment`: the workers'. Workers that dial before it
  // listens retry.
  void begin(const HostPlan& plan, const Environment& environment);
  // The supervisor has reaped this child; others than the service are ignored.
  void reaped(pid_t pid, int wait_status);
  void end();

 private:
  std::string words_path() const;  // The file with its standard error.
  void fail(const std::string& why);

  const SupervisorStart& start_;
  const Handlers handlers_;
  pid_t pid_ = 0;
};

}  // namespace ivy
