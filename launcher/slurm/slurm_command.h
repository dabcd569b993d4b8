// SPDX-License-Identifier: Apache-2.0
// Runs squeue or scontrol asynchronously, with a deadline. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Calls `done` once, from the loop, with the command's standard output without the last newline if
// it exited with 0. Otherwise passes an error that contains its standard error: NotFound (no such
// program), DeadlineExceeded (it was killed), FailedPrecondition (it failed). Keeps the first 64
// KiB of each stream. The command keeps itself alive; if the loop ends first, the command continues
// to run.
void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done);

}  // namespace ivy
