// SPDX-License-Identifier: Apache-2.0
// The text of --metrics-file: the state of a job in the format of Prometheus. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/wire/ctl.pb.h"

namespace ivy {

struct MetricsInputs {
  std::string job_id;
  std::string name;
  std::string program;  // The name of the command's file.
  std::int64_t opened_unix_ms = 0;
  std::uint32_t generation = 0;
  std::optional<int> exit_code;  // Set once the job has ended.
};

std::string metrics_text(const MetricsInputs& job, const ctl::RanksDescription& ranks);

}  // namespace ivy
