// SPDX-License-Identifier: Apache-2.0
// A warden of this host that is a forked copy of this process, so that a local job starts one
// program less. Thread: the main one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"

namespace ivy {

// The job and host of a warden.
struct WardenOrder {
  std::string program;  // The path of this build's ivy-node.
  std::string job_id;
  std::uint32_t host = 0;
  bool operator==(const WardenOrder&) const = default;
};

// Returns the arguments of `ivy-node warden` for a connection on descriptor 3.
std::vector<std::string> warden_arguments(const WardenOrder& order);

class WardenCopy {
 public:
  // Runs `ivy-node warden` with these arguments in the copy, and returns its exit code. Must not
  // throw.
  using Main = int (*)(int argc, char** argv);
  // Forks the copy. Call before there is a loop, because Asio's state for signals would be shared
  // with the copy, which makes its own loop. Returns null if this process has threads, which a copy
  // would lack, or if the system cannot start more processes. reaps: this process waits for all its
  // children before it exits. It then becomes a subreaper, so that the warden need not outlive its
  // supervisor.
  static std::shared_ptr<WardenCopy> start(const WardenOrder& order, Main main, bool reaps = false);

  // Stops a copy that was not used, waits for it, and resets the subreaper attribute.
  ~WardenCopy();
  WardenCopy(const WardenCopy&) = delete;
  WardenCopy& operator=(const WardenCopy&) = delete;

  struct Parts {
    pid_t pid = 0;
    Descriptor transport;  // This process's end of the connection.
  };
  // Returns the pid, or 0 after take().
  pid_t pid() const { return parts_ ? parts_->pid : 0; }
  // Gives the copy to the link that wants exactly this warden. Returns nullopt if the order
  // differs, or after the first call.
  std::optional<Parts> take(const WardenOrder& order);

 private:
  WardenCopy(WardenOrder order, Parts parts);
  const WardenOrder order_;
  std::optional<Parts> parts_;
};

}  // namespace ivy
