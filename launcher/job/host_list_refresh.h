// SPDX-License-Identifier: Apache-2.0
// Runs the command of --hosts-from again before a restart. With --nnodes MIN:MAX, hosts that the
// list no longer has take no part in the next attempt. Hosts that are new in it are named, since no
// host can join a running job. Thread: the loop's; the command is awaited on a pool thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/options/hosts.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"

namespace ivy {

class HostListRefresh {
 public:
  explicit HostListRefresh(JobContext& job) : job_(job), known_(job.options.listed_hosts) {}

  // True if the hosts are those of --hosts-from. In an allocation, where they have the scheduler's
  // names, the list is not read again.
  bool is_due() const;
  // Calls done on the loop, never before it returns, once the hosts that are left are known.
  // A command that fails leaves them as they are, with a warning.
  // A second call cancels the first.
  void run(std::function<void()> done);
  bool is_running() const { return cancel_ != nullptr; }
  // Kills the command; done is not called.
  void cancel();

 private:
  void take(const Result<std::string>& output);
  void leave_out(std::size_t index);

  JobContext& job_;
  std::vector<Host> known_;             // The last list.
  std::unique_ptr<BlockingPool> pool_;  // Made when it is needed.
  BlockingPool::TaskId task_ = 0;       // The command, while it runs.
  std::shared_ptr<Descriptor> cancel_;  // An event, while the command runs; shared with the task.
};

// Returns the hosts of `list` that are not in `others`.
std::vector<Host> hosts_not_in(const std::vector<Host>& list, const std::vector<Host>& others);

}  // namespace ivy
