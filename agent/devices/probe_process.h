// SPDX-License-Identifier: Apache-2.0
// Runs ivy-probe and reads its answer. The supervisor continues without the probe if it is missing,
// hangs, crashes or prints something else. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "agent/devices/probe_answer.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// NVML answers within half a second if the driver keeps its devices initialized; otherwise it
// usually takes more than a second. The start of a job must not wait longer for facts that the
// files have too.
inline constexpr std::chrono::milliseconds kProbeLimit{2000};

class ProbeProcess {
 public:
  using Done = std::function<void(const Result<ProbeAnswer>&)>;

  explicit ProbeProcess(boost::asio::io_context& loop);
  ~ProbeProcess();  // Kills a running probe; `done` is not called.
  ProbeProcess(const ProbeProcess&) = delete;
  ProbeProcess& operator=(const ProbeProcess&) = delete;

  // arguments[0] is the program's path. Calls `done` once, from the loop, unless start() is called
  // again or the object is destroyed first. Kills the probe when it has answered or after `limit`.
  void start(std::vector<std::string> arguments, std::chrono::milliseconds limit, Done done);

 private:
  void read_more();
  void finish(const Result<ProbeAnswer>& answer);
  void stop();

  boost::asio::posix::stream_descriptor output_;
  boost::asio::steady_timer timer_;
  std::string text_;
  std::string buffer_;
  Descriptor pidfd_;
  unsigned attempt_ = 0;  // Identifies the current start; handlers of earlier ones are ignored.
  Done done_;
};

}  // namespace ivy
