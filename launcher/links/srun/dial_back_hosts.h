// SPDX-License-Identifier: Apache-2.0
// The interface through which links wait for hosts that dial back to the launcher: the hosts of a
// srun step (SrunStep), or the nodes of torchrun mode (JoinedHosts). Thread: the loop's.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/links/host_link.h"
#include "launcher/links/srun/step_hosts.h"

namespace ivy {

class DialBackHosts {
 public:
  virtual ~DialBackHosts() = default;
  // Starts to wait for the host's connection. The client must live until leave().
  virtual void wait_for(const OpenRequest& request, const std::string& host,
                        StepClient& client) = 0;
  // Stops waiting, or gives the connection up.
  virtual void leave(std::uint32_t host, const StepClient& client) = 0;
  virtual Transport transport() const = 0;
  // For messages: the command that has started the hosts, and the address to which they connect
  // ("10.0.0.1:41234").
  virtual const std::string& command_text() const = 0;
  virtual std::string listening_text() const = 0;
};

}  // namespace ivy
