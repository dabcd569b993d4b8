// SPDX-License-Identifier: Apache-2.0
// JAX's coordination service on the job's first host (--app jax-service): a child of the
// supervisor, started with the workers' interpreter because it needs their jaxlib. If rank 0
// provided the service, rank 0 could not be restarted alone. Each generation has a separate
// service.
//
// Thread: the supervisor's loop. Lifetime: the context must outlive it; the
// destructor kills the process.
#pragma once

#include <sys/types.h>

#include <string>

#include "agent/node/supervisor/supervisor_context.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class JaxService {
 public:
  explicit JaxService(SupervisorContext& context) : context_(context) {}
  ~JaxService() { end(); }
  JaxService(const JaxService&) = delete;
  JaxService& operator=(const JaxService&) = delete;

  // Starts the service if the plan requires it, with the workers' environment. Workers that connect
  // before it listens retry.
  void begin(const HostPlan& plan, const Environment& environment);
  // The supervisor has reaped a child; does nothing unless it is the service.
  void reaped(pid_t pid, int wait_status);
  void end();

 private:
  std::string log_path() const;  // File that receives its standard error.
  void fail(const std::string& why);

  SupervisorContext& context_;
  pid_t pid_ = 0;
};

}  // namespace ivy
