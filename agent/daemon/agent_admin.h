// SPDX-License-Identifier: Apache-2.0
// `ivy-agent drain` and `ivy-agent status`: clients of the agent of this host, over its Unix
// socket. Thread: main's; they block. Both print their result and return the exit code: 0, or 1
// when the agent does not answer or jobs are left after --wait.
#pragma once

#include <memory>

#include "agent/daemon/options.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {

// Returns a stub for the agent that serves on this Unix socket. It connects at the first call.
std::unique_ptr<agent::v1::Agent::Stub> calls_over_unix(const std::string& socket);

// Carries out the verb and prints its result. Returns the exit code.
int run_drain(const DrainCommand& command, const Environment& environment);
// Prints this host's agent and its jobs. Returns the exit code.
int run_status(const StatusCommand& command, const Environment& environment);

// Prints the error and its fix on standard error. Returns the matching exit code.
int print_error(const Error& error);

}  // namespace ivy
