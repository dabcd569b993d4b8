// SPDX-License-Identifier: Apache-2.0
// Runs ivy-probe and reads its answer. Whatever happens (it is missing, hangs, crashes, prints
// something else), the supervisor goes on without it. Thread: the loop's.
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

// NVML answers within half a second where the driver keeps its devices initialised; where it does
// not, a second and more is usual. A job's start must not wait longer for facts that files have
// too.
inline constexpr std::chrono::milliseconds kProbeLimit{2000};

class ProbeProcess {
 public:
  using Done = std::function<void(const Result<ProbeAnswer>&)>;

  explicit ProbeProcess(boost::asio::io_context& loop);
  ~ProbeProcess();  // Kills a probe that still runs; `done` is not called.
  ProbeProcess(const ProbeProcess&) = delete;
  ProbeProcess& operator=(const ProbeProcess&) = delete;

  // arguments[0] is the program's path. `done` is called once, from the loop, unless another start
  // or the destructor comes first. A probe that has answered, or has not within `limit`, is killed.
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
  unsigned attempt_ = 0;  // Handlers of an earlier start are ignored.
  Done done_;
};

}  // namespace ivy
