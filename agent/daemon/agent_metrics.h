// SPDX-License-Identifier: Apache-2.0
// The file of `serve --metrics-file`: the agent's state in the text format of Prometheus. Thread:
// the loop's; a file system that does not respond blocks only the writer's thread.
#pragma once

#include <chrono>
#include <string>

#include "proto/os/file_writer.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

// Pure.
std::string agent_metrics_text(const agent::v1::FactsReply& facts,
                               const agent::v1::ListReply& list);

class AgentMetricsFile {
 public:
  // The period of the launcher's --metrics-file, and a usual interval of Prometheus.
  static constexpr std::chrono::seconds kPeriod{15};

  // An empty path turns it off.
  explicit AgentMetricsFile(std::string path);

  // Returns true once per period, if the file is wanted and its previous version is written.
  bool is_due(std::chrono::steady_clock::time_point now);
  // Replaces the file as a whole.
  void write(std::string_view text);
  // Returns the first failure since the last call, for the log; empty if there is none.
  std::string take_failure();

 private:
  const std::string path_;
  FileWriter writer_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ivy
