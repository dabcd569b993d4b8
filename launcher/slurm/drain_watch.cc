// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/drain_watch.h"

#include <utility>

#include "launcher/slurm/slurm_command.h"
#include "proto/contract/log.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// A controller that is busy answers the next query.
constexpr std::chrono::seconds kQueryDeadline{5};

}  // namespace

DrainedNodes parse_drained_nodes(std::string_view output) {
  DrainedNodes nodes;
  while (!output.empty()) {
    std::string_view line = take_part(output, '\n');
    if (line.find('|') == std::string_view::npos) continue;
    const std::string node(take_part(line, '|'));
    if (!node.empty()) nodes[node] = line == "none" ? "" : std::string(line);
  }
  return nodes;
}

void DrainWatch::start(std::chrono::milliseconds period) {
  period_ = period;
  query();
}

void DrainWatch::stop() {
  stopped_ = true;
  timer_.cancel();
}

void DrainWatch::query() {
  // A node is listed once for each of its partitions.
  run_slurm_command(loop_, {"sinfo", "-h", "-N", "-n", nodes_, "-t", "drain", "-o", "%N|%E"},
                    kQueryDeadline, [this](const Result<std::string>& output) {
                      if (stopped_) return;
                      if (output.ok())
                        take(parse_drained_nodes(output.value()));
                      else
                        log::debug("drained nodes: " + output.error().message);
                      timer_.expires_after(period_);
                      timer_.async_wait([this](const boost::system::error_code& error) {
                        if (!error) query();
                      });
                    });
}

void DrainWatch::take(const DrainedNodes& present) {
  const DrainedNodes before = std::exchange(drained_, present);
  if (!std::exchange(has_first_, true)) return;
  for (const auto& [node, reason] : present)
    if (!before.contains(node)) events_.node_drains(node, reason);
  for (const auto& [node, reason] : before)
    if (!present.contains(node)) events_.node_resumes(node, reason);
}

}  // namespace ivy
