// SPDX-License-Identifier: Apache-2.0
// The contents of summary.h as values, for programs. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <string_view>

#include "launcher/screen/summary.h"

namespace ivy {

// {"rank": 3, "host": "node03", "exit_code": 1, "signal": "SIGKILL", ...}; unknown fields are
// omitted.
boost::json::object end_object(const WorkerEnd& end, std::int64_t started_at_ns);

// Exit code, its origin, the first cause with its evidence, and the ranks by how they ended.
boost::json::object verdict_object(const SummaryInputs& inputs);

// "worker", "interrupted", "timeout", "host_lost"...; "ok" if the job succeeded.
std::string_view reason_word(const SummaryInputs& inputs);

}  // namespace ivy
