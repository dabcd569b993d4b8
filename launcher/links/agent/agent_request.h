// SPDX-License-Identifier: Apache-2.0
// The contents of the request that opens a job. Pure, except for the names of this account and this
// machine. Thread: the loop's.
#pragma once

#include <string>

#include "launcher/links/host_link.h"
#include "launcher/options/options.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

// Describes the job for the agent's audit log and for `ivyctl ps`; the agent decides nothing by it.
agent::v1::JobDescription job_description(const Options& options);

// Returns a hash of the program and its arguments, each followed by a NUL, as 64 hexadecimal
// digits.
std::string command_sha256(const std::vector<std::string>& command);

}  // namespace ivy
