// SPDX-License-Identifier: Apache-2.0
// The state of a job in the text format of Prometheus, for --metrics-file. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/wire/ctl.pb.h"

namespace ivy {

struct MetricsInputs {
  std::string job_id;
  std::string name;
  std::string program;
  std::int64_t opened_unix_ms = 0;
  std::uint32_t generation = 0;
  std::optional<int> exit_code;  // Present once the job has ended.
};

std::string metrics_text(const MetricsInputs& job, const ctl::RanksDescription& ranks);

}  // namespace ivy
