// SPDX-License-Identifier: Apache-2.0
// Runs squeue or scontrol asynchronously, with a deadline. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/streams/sequence.h"
#include "proto/contract/status.h"

namespace ivy {

// Calls done once, perhaps before it returns, with the standard output of a command that exited
// with 0, without its last newline. Else with an error that contains its standard error: NotFound
// (the program does not exist), DeadlineExceeded (it was killed), FailedPrecondition (it failed).
// The first 64 KiB of each stream are kept. The command keeps itself alive; if the loop ends first,
// it continues to run.
void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done);

// Runs run_slurm_command() as a step of a coroutine.
Awaitable<Result<std::string>> slurm_answer(Sequence& sequence, std::vector<std::string> arguments,
                                            std::chrono::milliseconds deadline);

}  // namespace ivy
