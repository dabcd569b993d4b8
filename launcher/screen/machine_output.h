// SPDX-License-Identifier: Apache-2.0
// The contents of the summary (summary.h) as JSON, for programs. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <string_view>

#include "launcher/screen/summary.h"

namespace ivy {

// Returns one worker's end: {"rank": 3, "host": "node03", "exit_code": 1, "signal": "SIGKILL",
// ...}. Unknown fields are omitted.
boost::json::object end_object(const WorkerEnd& end, std::int64_t started_at_ns);

// Returns the exit code, its origin, the first cause with its evidence, and the ranks by how they
// ended.
boost::json::object verdict_object(const SummaryInputs& inputs);

// Returns the reason for the job's end as a word: "worker", "interrupted", "timeout",
// "host_lost"...; "ok" if the job succeeded.
std::string_view reason_name(const SummaryInputs& inputs);

}  // namespace ivy
