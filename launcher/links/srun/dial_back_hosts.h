// SPDX-License-Identifier: Apache-2.0
// Hosts whose supervisors dial back to the launcher, as their links see them: those of a srun step,
// and nodes of torchrun mode. Thread: the loop's.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/links/host_link.h"
#include "launcher/links/srun/step_hosts.h"

namespace ivy {

class DialBackHosts {
 public:
  virtual ~DialBackHosts() = default;
  // The client outlives its stay.
  virtual void wait_for(const OpenRequest& request, const std::string& host,
                        StepClient& client) = 0;
  virtual void leave(std::uint32_t host, const StepClient& client) = 0;
  virtual Transport transport() const = 0;
  // For people: the words that have started the hosts, and where we listen ("10.0.0.1:41234").
  virtual const std::string& command_text() const = 0;
  virtual std::string listening_text() const = 0;
};

}  // namespace ivy
