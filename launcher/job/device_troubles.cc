#include "launcher/job/device_troubles.h"

#include <algorithm>
#include <optional>
#include <string>

#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxDeviceNotes = 256;

// The first of the ranks that were given the device at this address.
std::optional<int> rank_with(const JobPlan& plan, const HostRecord& host, const std::string& bdf) {
  if (bdf.empty() || !host.is_planned() || !host.facts) return std::nullopt;
  const PlannedHost& planned = plan.hosts[static_cast<std::size_t>(host.plan_index)];
  for (const PlannedWorker& worker : planned.workers) {
    for (const int place : worker.devices) {
      const int index = planned.devices[static_cast<std::size_t>(place)];
      if (index < host.facts->devices_size() && host.facts->devices(index).bdf() == bdf)
        return worker.rank;
    }
  }
  return std::nullopt;
}

// A GPU that masks or the scheduler hide is another job's.
bool is_foreign(const HostRecord& host, const std::string& bdf) {
  if (bdf.empty() || !host.facts || host.facts->devices_size() == 0) return false;
  const auto& devices = host.facts->devices();
  return std::none_of(devices.begin(), devices.end(),
                      [&](const Accelerator& device) { return device.bdf() == bdf; });
}

}  // namespace

void take_device_trouble(JobContext& job, std::size_t index, const DeviceTrouble& trouble) {
  if (trouble.generation() != job.generation) return;
  const HostRecord& host = job.hosts[index];
  for (const DeviceTroubleOne& one : trouble.findings()) {
    if (job.device_notes.size() >= kMaxDeviceNotes) return;
    if (is_foreign(host, one.bdf())) continue;
    DeviceNote note;
    note.host = host.name();
    note.device = RemoteText(one.device()).line();
    note.text = RemoteText(one.text()).line();
    note.rank = rank_with(job.plan, host, one.bdf());
    if (one.at_ns() != 0) note.at_ns = host.session->relate(one.at_ns()).at_ns;
    job.device_notes.push_back(std::move(note));
  }
}

}  // namespace ivy
