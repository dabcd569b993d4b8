// SPDX-License-Identifier: Apache-2.0
// One run of a debugger (py-spy, gdb) on a worker, limited in time and output. A tool that takes
// too long gets SIGTERM, on which both tools detach from the process, and half a second later
// SIGKILL. Thread: the supervisor's. Lifetime: kills a running tool; the supervisor reaps it like
// any child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

class ToolRun {
 public:
  static constexpr std::size_t kMaxOutputBytes = 256u << 10;
  static constexpr std::uint64_t kTermToKillNs = 500'000'000;

  // `arguments[0]` is an absolute path. Captures standard output and standard error together.
  static Result<std::unique_ptr<ToolRun>> start(const std::vector<std::string>& arguments,
                                                const Environment& environment,
                                                std::uint64_t deadline_ns);
  ~ToolRun();
  ToolRun(const ToolRun&) = delete;
  ToolRun& operator=(const ToolRun&) = delete;

  // Reads the output that has arrived. Returns true when the run has finished.
  bool advance(std::uint64_t now_ns);

  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }
  bool output_was_cut() const { return output_was_cut_; }
  bool was_late() const { return was_late_; }

 private:
  ToolRun() = default;
  bool read_output();  // Returns true when all output has been read.

  pid_t pid_ = -1;
  Descriptor pidfd_;
  Descriptor output_fd_;
  std::uint64_t deadline_ns_ = 0;
  std::string output_;
  bool output_was_cut_ = false;
  bool was_late_ = false;
  bool was_killed_ = false;
};

}  // namespace ivy
