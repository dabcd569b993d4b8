// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/discovery.h"

#include <unistd.h>  // environ

#include <memory>
#include <utility>

#include "agent/devices/core_files.h"

namespace ivy {
namespace {

// The findings that are available before the probe answers.
struct Request {
  DeviceFiles files;
  bool needs_nvml = false;
  bool reads_cores = false;
  Environment masks;
  std::string root;
};

Environment masks_of(const Hello& hello) {
  Environment masks;
  for (const Variable& mask : hello.masks()) set_variable(masks, mask.name(), mask.value());
  return masks;
}

// Restricts the cores that hwloc found to those we may use: hwloc does not know our affinity.
std::vector<Core> within(const std::vector<Core>& cores, const CoreList& allowed) {
  std::vector<Core> left;
  for (Core core : cores) {
    core.processors = common_cores(core.processors, allowed);
    if (!core.processors.empty()) left.push_back(std::move(core));
  }
  return left;
}

HostFacts facts_of(const Request& request, const ProbeAnswer& answer) {
  DeviceFindings findings;
  findings.found = combine_findings(request.files, answer.nvml);
  if (request.needs_nvml && !answer.nvml.is_present && !findings.found.devices.empty())
    findings.found.source += ", because NVML could not be queried: " + answer.nvml.error;
  if (request.reads_cores || !findings.found.devices.empty())
    findings.allowed = allowed_cores(request.root);
  if (request.reads_cores) {
    findings.cores = within(answer.cores, findings.allowed);
    if (findings.cores.empty()) findings.cores = read_cores(request.root, findings.allowed);
  }
  HostFacts facts;
  set_device_facts(findings, environment_of(environ), request.masks, facts);
  return facts;
}

ProbeAnswer without_probe(const std::string& why) {
  ProbeAnswer answer;
  answer.nvml.error = why;
  return answer;
}

}  // namespace

Discovery::Discovery(boost::asio::io_context& loop, std::string probe_program, std::string root)
    : probe_program_(std::move(probe_program)), root_(std::move(root)), probe_(loop) {}

void Discovery::describe(const Hello& hello, Done done) {
  const auto request = std::make_shared<Request>();
  request->files = read_device_files(root_);
  request->needs_nvml = wants_nvml(request->files.nvidia);
  request->reads_cores = hello.read_cores();
  request->masks = masks_of(hello);
  request->root = root_;
  if (!request->needs_nvml && !request->reads_cores)
    return done(facts_of(*request, without_probe("no NVIDIA driver")));
  std::vector<std::string> arguments = {probe_program_};
  if (request->needs_nvml) arguments.emplace_back("devices");
  if (request->reads_cores) arguments.emplace_back("cores");
  probe_.start(
      std::move(arguments), kProbeLimit,
      [request, done = std::move(done)](const Result<ProbeAnswer>& answer) {
        done(facts_of(*request, answer.ok() ? *answer : without_probe(answer.error().message)));
      });
}

}  // namespace ivy
