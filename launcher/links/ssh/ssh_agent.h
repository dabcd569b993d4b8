// SPDX-License-Identifier: Apache-2.0
// Checks whether the user's SSH agent answers at all, which libssh does not. An agent may be silent
// for any time: it is forwarded from a laptop that sleeps, was stopped, or waits for a touch.
// Thread: one of a pool; the calls block.
#pragma once

#include <chrono>
#include <string>

#include "launcher/links/ssh/ssh_settings.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Returns the path of the agent's socket for this target; empty: the user has no agent.
std::string ssh_agent_path(const SshTarget& target);

// Connects to an agent and lists its keys. Returns the connection, for libssh. NotFound: no agent
// listens there, or it has no keys. DeadlineExceeded: the agent accepted the connection but did not
// answer.
Result<Descriptor> open_ssh_agent(const std::string& path, std::chrono::milliseconds limit);

}  // namespace ivy
