// SPDX-License-Identifier: Apache-2.0
// Runs a command to its end and returns its standard output, within a time and a size. Blocks: call
// it before there is a loop, or in a task of BlockingPool. Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct CommandRequest {
  std::string name;                    // For messages: "--hosts-from", "flux getattr hostlist".
  std::vector<std::string> arguments;  // arguments[0] is looked up in PATH if it has no '/'.
  Environment environment;
  std::chrono::milliseconds deadline{};
  std::size_t max_bytes = 0;  // More output than this is an error.
  // The command is killed when this descriptor becomes readable; -1: never.
  int cancel_fd = -1;
};

// Standard input is /dev/null. The command leads a session; whatever of it is left at its end, at
// the deadline or when it is cancelled is killed. Returns, with the name in front, NotFound (the
// program does not exist), DeadlineExceeded, ResourceExhausted (too much output), Cancelled, or
// FailedPrecondition with the last line of standard error if it did not exit with 0.
Result<std::string> command_output(const CommandRequest& request);

// Runs command_output() on the main thread, before there is a loop. A signal that would end this
// process (Ctrl-C, TERM) kills the command first.
Result<std::string> command_output_at_start(CommandRequest request);

// The request of --hosts-from: a command for /bin/sh, and the environment of ivyrun.
CommandRequest hosts_from_request(const std::string& command, const Environment& caller);

}  // namespace ivy
