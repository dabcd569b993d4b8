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

// done is called once, from the loop: what the command wrote to standard output when it exited with
// 0, without the last newline. Else an error that has its standard error in it: NotFound (there is
// no such program), DeadlineExceeded (it was killed), FailedPrecondition (it failed). The first
// 64 KiB of each stream are kept. The command keeps itself alive; a loop that ends first leaves it
// alone.
void run_slurm_command(boost::asio::io_context& loop, const std::vector<std::string>& arguments,
                       std::chrono::milliseconds deadline,
                       std::function<void(Result<std::string>)> done);

}  // namespace ivy
