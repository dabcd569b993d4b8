// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/metrics_text.h"

#include <algorithm>
#include <functional>

#include "proto/contract/metrics_page.h"

namespace ivy {
namespace {

// The page of a job, whose samples all have its id.
class Page : public MetricsPage {
 public:
  explicit Page(const std::string& job_id)
      : MetricsPage("ivyrun_", "job_id=" + quoted_label(job_id)) {}

  void each(const ctl::RanksDescription& ranks,
            const std::function<std::optional<double>(const ctl::RankRow&)>& value) {
    for (const ctl::RankRow& row : ranks.ranks())
      if (const std::optional<double> known = value(row))
        add("rank=\"" + std::to_string(row.rank()) + "\",host=" + quoted_label(row.host()), *known);
  }
};

void add_job(const MetricsInputs& job, Page& page) {
  page.begin("job_info", "gauge", "Name and program of the job.");
  page.add("name=" + quoted_label(job.name) + ",program=" + quoted_label(job.program), 1);
  page.begin("job_start_time_seconds", "gauge", "Start time of ivyrun in seconds since 1970.");
  page.add("", static_cast<double>(job.opened_unix_ms) / 1e3);
  page.begin("job_restarts_total", "counter", "Number of restarts of all ranks.");
  page.add("", job.generation);
  if (!job.exit_code) return;
  page.begin("job_exit_code", "gauge", "Exit code of the finished job.");
  page.add("", *job.exit_code);
}

bool uses_devices(const ctl::RankRow& row) { return row.devices() > 0; }

void add_devices_of(const ctl::RanksDescription& ranks, Page& page) {
  using Value = std::optional<double>;
  page.begin("rank_gpu_memory_bytes", "gauge", "GPU memory used by the rank's processes.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return uses_devices(row) ? Value(static_cast<double>(row.device_bytes())) : Value();
  });
  page.begin("rank_gpu_busy_ratio", "gauge", "Utilisation of the rank's GPUs, by any process.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return uses_devices(row) && row.device_percent() >= 0 ? Value(row.device_percent() / 100.0)
                                                          : Value();
  });
}

void add_usage_of(const ctl::RanksDescription& ranks, Page& page) {
  using Value = std::optional<double>;
  page.begin("rank_cpu_seconds_total", "counter", "Processor time of the rank's processes.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return row.has_usage() ? Value(static_cast<double>(row.cpu_ms()) / 1e3) : Value();
  });
  page.begin("rank_memory_bytes", "gauge", "Resident memory of the rank's processes.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return row.has_usage() ? Value(static_cast<double>(row.memory_bytes())) : Value();
  });
  page.begin("rank_processes", "gauge", "Number of processes of the rank.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return row.has_usage() ? Value(row.processes()) : Value();
  });
  if (std::any_of(ranks.ranks().begin(), ranks.ranks().end(), uses_devices))
    add_devices_of(ranks, page);
  page.begin("rank_output_age_seconds", "gauge", "Time since the rank's last output.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return row.output_age_ms() >= 0 ? Value(static_cast<double>(row.output_age_ms()) / 1e3)
                                    : Value();
  });
}

}  // namespace

std::string metrics_text(const MetricsInputs& job, const ctl::RanksDescription& ranks) {
  Page page(job.job_id);
  add_job(job, page);
  page.begin("rank_running", "gauge", "1 while the rank is running.");
  page.each(ranks, [](const ctl::RankRow& row) {
    return std::optional<double>(row.state() == "running" ? 1 : 0);
  });
  add_usage_of(ranks, page);
  return page.take();
}

}  // namespace ivy
