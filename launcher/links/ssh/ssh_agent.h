// SPDX-License-Identifier: Apache-2.0
// The user's SSH agent, as far as libssh does not handle it: whether it answers at all. An agent
// may be silent for as long as it likes: forwarded from a laptop that sleeps, stopped, or waiting
// for a touch. Thread: a pool's; the calls block.
#pragma once

#include <chrono>
#include <string>

#include "launcher/links/ssh/ssh_settings.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Returns the path of the agent's socket for this target; empty: the user has none.
std::string ssh_agent_path(const SshTarget& target);

// Connects to an agent and lists its keys. Returns the connection, for libssh. NotFound: no agent
// listens there, or it has no keys. DeadlineExceeded: it accepts and is silent.
Result<Descriptor> open_ssh_agent(const std::string& path, std::chrono::milliseconds limit);

}  // namespace ivy
