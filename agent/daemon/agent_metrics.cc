// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/agent_metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/contract/metrics_page.h"

namespace ivy {

std::string agent_metrics_text(const agent::v1::FactsReply& facts,
                               const agent::v1::ListReply& list) {
  // A host has an agent for each user, and each writes a separate file.
  MetricsPage page("ivyrun_agent_", "user=" + quoted_label(facts.user()));
  page.begin("info", "gauge", "Version and architecture of the agent.");
  page.add("version=" + quoted_label(facts.version()) +
               ",architecture=" + quoted_label(facts.architecture()),
           1);
  page.begin("start_time_seconds", "gauge", "Start time of the agent in seconds since 1970.");
  page.add("", static_cast<double>(facts.started_at()));
  page.begin("draining", "gauge", "1 if the agent accepts no new jobs.");
  page.add("", facts.draining() ? 1 : 0);
  page.begin("jobs", "gauge", "Number of jobs on this host.");
  page.add("", list.jobs_size());
  page.begin("jobs_without_launcher", "gauge", "Number of these jobs whose launcher is away.");
  page.add("", static_cast<double>(std::count_if(list.jobs().begin(), list.jobs().end(),
                                                 [](const auto& job) { return !job.attached(); })));
  if (facts.certificate_expires_at() != 0) {
    page.begin("certificate_expiry_time_seconds", "gauge",
               "End of the host certificate in seconds since 1970.");
    page.add("", static_cast<double>(facts.certificate_expires_at()));
  }
  return page.take();
}

// has_room() is not used: the queue holds at most one version of the file.
AgentMetricsFile::AgentMetricsFile(std::string path)
    : path_(std::move(path)), writer_(/*max_queued_bytes=*/0, /*done=*/nullptr) {}

bool AgentMetricsFile::is_due(std::chrono::steady_clock::time_point now) {
  if (path_.empty() || now < next_ || !writer_.is_idle()) return false;
  next_ = now + kPeriod;
  return true;
}

void AgentMetricsFile::write(std::string_view text) {
  const std::string fresh = path_ + "." + std::to_string(getpid());
  // The collector may run as another user, but only this user may write the file.
  const FileWriter::File file = writer_.open([fresh] {
    const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd;
  });
  writer_.write(file, text);
  writer_.close_and_rename(file, fresh, path_);
}

std::string AgentMetricsFile::take_failure() {
  for (const FileWriter::Done& done : writer_.take_done())
    if (done.errno_value != 0)
      return "--metrics-file " + path_ + ": " + std::strerror(done.errno_value);
  return {};
}

}  // namespace ivy
