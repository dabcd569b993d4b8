// SPDX-License-Identifier: Apache-2.0
// State shared by all parts of a supervisor. Thread: the loop's. Lifetime: outlives the parts.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/spawn/reserved_port.h"
#include "agent/node/supervisor/event_sink.h"
#include "agent/node/supervisor/supervisor_start.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Ports that are reserved until the job ends, on host 0, and on every host with --nnodes MIN:MAX.
// `master` is MASTER_PORT, for the store's torch dialect or for rank 0's own store. Frameworks
// other than torch open `coordinator` in rank 0.
struct JobPorts {
  std::optional<ReservedPort> master;
  std::optional<ReservedPort> coordinator;
  std::optional<ReservedPort> store;
  std::vector<ReservedPort> workers;  // On every host, for frameworks whose ranks all listen.
};

struct SupervisorContext {
  SupervisorContext(const SupervisorStart& arguments, EventSink& sink)
      : start(arguments), events(sink) {}
  SupervisorContext(const SupervisorContext&) = delete;
  SupervisorContext& operator=(const SupervisorContext&) = delete;

  // Returns true if a scheduler's step contains this host's processes and may signal all of them.
  bool is_in_step() const { return start.step_task != 0; }

  const SupervisorStart start;
  EventSink& events;  // Events for the launcher.
  boost::asio::io_context loop{1};
  // For calls that may block, such as those on users' file systems.
  BlockingPool blocking{
      [this](std::function<void()> function) { boost::asio::post(loop, std::move(function)); }};
  // Set by Hello; each generation has a new one. The servers are children outside it (spare()).
  std::unique_ptr<Containment> containment;
  JobPorts ports;
  // The lock of the job's directory, if the supervisor had to create the directory again.
  Descriptor directory_lock;
};

}  // namespace ivy
