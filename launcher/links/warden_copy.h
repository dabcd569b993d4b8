// SPDX-License-Identifier: Apache-2.0
// A warden of this host that is a copy of this process, so that a local job starts one program
// fewer. Thread: the main one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"

namespace ivy {

struct WardenOrder {
  std::string program;  // The path of this build's ivy-node.
  std::string job_id;
  std::uint32_t host = 0;
  bool operator==(const WardenOrder&) const = default;
};

// Returns the arguments of ivy-node as the warden of a transport on descriptor 3.
std::vector<std::string> warden_words(const WardenOrder& order);

class WardenCopy {
 public:
  // Goes on in the copy with these words as `ivy-node warden` would; returns the exit code and may
  // not throw.
  using Main = int (*)(int argc, char** argv);
  // Forks. To be called before there is a loop: what Asio knows of signals would be shared with the
  // copy, which has a loop of its own. Null where there is none: this process has threads, which a
  // copy would lack, or the system has no more processes.
  // reaps: this process waits for all its children before it ends. It then becomes a subreaper, so
  // that the warden need not outlive its supervisor.
  static std::shared_ptr<WardenCopy> start(const WardenOrder& order, Main main, bool reaps = false);

  // Stops a copy that was not used, waits for it, and resets the subreaper attribute.
  ~WardenCopy();
  WardenCopy(const WardenCopy&) = delete;
  WardenCopy& operator=(const WardenCopy&) = delete;

  struct Parts {
    pid_t pid = 0;
    Descriptor transport;  // The end of it that is ours.
  };
  // 0 once it was given away.
  pid_t pid() const { return parts_ ? parts_->pid : 0; }
  // Gives it to the link that wants just this warden, once.
  std::optional<Parts> take(const WardenOrder& order);

 private:
  WardenCopy(WardenOrder order, Parts parts);
  const WardenOrder order_;
  std::optional<Parts> parts_;
};

}  // namespace ivy
