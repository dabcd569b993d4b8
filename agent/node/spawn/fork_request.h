// SPDX-License-Identifier: Apache-2.0
// Workers that a fork server creates (../supervisor/preload_server.py), instead of clone and exec:
// the request, and the records with which the new processes answer. Blocks. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "agent/node/spawn/spawn.h"
#include "proto/contract/status.h"

namespace ivy {

// Workers in one request. One message carries at most 253 descriptors, of which a worker needs
// three.
inline constexpr std::size_t kMaxForkedAtOnce = 64;

// One worker of a request, and its outcome: a process or a failure.
struct ForkedWorker {
  const SpawnRequest* request = nullptr;
  SpawnResult result;
};

// Returns the text of the request in the form that class Request of preload_server.py reads:
// fields that each end with a zero byte. Pure.
std::string fork_request_text(std::span<const ForkedWorker> workers, pid_t supervisor);

// Fills in the results of at most kMaxForkedAtOnce workers with the same cgroup and session. They
// are children of this process, which must be a subreaper, and run their program when this function
// returns. Until then this process must not reap children that it does not know.
// Returns an error, and no worker exists or will run a program, if the server did not fork all of
// them within ten seconds (it must then be killed), or Cancelled if is_cancelled() returned true.
Result<void> fork_workers(int server, std::span<ForkedWorker> workers,
                          const std::function<bool()>& is_cancelled);

}  // namespace ivy
