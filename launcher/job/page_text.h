// The state of a job as one page of HTML for browsers, for --page. It loads nothing and runs
// nothing: what hosts and workers say is text in it. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/metrics_text.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

struct PageInputs {
  MetricsInputs job;
  std::vector<std::string> command;
  std::string state;              // "running"; not used once there is an exit code.
  std::vector<std::string> said;  // Ranks that were lost while the job went on, a line each.
  std::string summary;            // What is said of the end.
  std::int64_t now_unix_ms = 0;
  int refresh_s = 0;  // How often a browser reads it again while the job runs.
};

// `before`: an earlier sample, for the share of a processor; it may be empty.
std::string page_text(const PageInputs& inputs, const ctl::RanksDescription& before,
                      const ctl::RanksDescription& now);

}  // namespace ivy
