// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/watch_answer.h"

#include <algorithm>

#include "agent/devices/probe_lines.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxOfEach = 64;

void take_holder(const ProbeFields& fields, WatchAnswer& answer) {
  const auto held = std::find_if(answer.held.begin(), answer.held.end(),
                                 [&](const HeldMemory& one) { return one.uuid == fields[1]; });
  DeviceHolder holder;
  if (held == answer.held.end() || held->holders.size() >= kMaxOfEach ||
      !read_number(fields[2], holder.pid) || !read_number(fields[3], holder.bytes))
    return;
  holder.name = fields[4];
  held->holders.push_back(std::move(holder));
}

}  // namespace

std::string finding_line(const DeviceFinding& finding) {
  std::string text;
  add_probe_line(text, "finding",
                 {finding.device, finding.bdf, std::to_string(finding.at_ns),
                  std::to_string(finding.xid), finding.text});
  return text;
}

std::string held_lines(const HeldMemory& held) {
  std::string text;
  add_probe_line(
      text, "held",
      {held.device, held.uuid, std::to_string(held.bytes), std::to_string(held.busy_percent)});
  for (const DeviceHolder& holder : held.holders)
    add_probe_line(
        text, "holder",
        {held.uuid, std::to_string(holder.pid), std::to_string(holder.bytes), holder.name});
  return text;
}

void take_watch_line(std::string_view line, WatchAnswer& answer) {
  if (!line.starts_with(kProbeMark)) return;
  const ProbeFields fields = split_probe_line(line.substr(kProbeMark.size()));
  if (fields.front() == "ready") answer.is_ready = true;
  if (fields.front() == "end") answer.is_complete = true;
  if (fields.front() == "finding" && fields.size() == 6 && answer.findings.size() < kMaxOfEach) {
    DeviceFinding finding;
    if (!read_number(fields[3], finding.at_ns) || !read_number(fields[4], finding.xid)) return;
    finding.device = fields[1];
    finding.bdf = fields[2];
    finding.text = fields[5];
    answer.findings.push_back(std::move(finding));
  }
  if (fields.front() == "held" && fields.size() == 5 && answer.held.size() < kMaxOfEach) {
    HeldMemory held;
    if (!read_number(fields[3], held.bytes) || !read_number(fields[4], held.busy_percent)) return;
    held.device = fields[1];
    held.uuid = fields[2];
    answer.held.push_back(std::move(held));
  }
  if (fields.front() == "holder" && fields.size() == 5) take_holder(fields, answer);
}

}  // namespace ivy
