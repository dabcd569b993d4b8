// SPDX-License-Identifier: Apache-2.0
// The request to an agent that opens a job. Pure except for the names of this account and this
// machine. Thread: the loop's.
#pragma once

#include <string>

#include "launcher/links/host_link.h"
#include "launcher/options/options.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

// For the agent's audit line and `ivyctl ps`; nothing is decided by it.
agent::v1::JobDescription job_description(const Options& options);

// Returns 64 hexadecimal digits: a hash of program and arguments, each followed by a NUL.
std::string command_sha256(const std::vector<std::string>& command);

}  // namespace ivy
