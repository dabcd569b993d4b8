// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/flux_hosts.h"

#include <string>
#include <vector>

namespace ivy {
namespace {

constexpr const char* kGetHosts = "flux getattr hostlist";

Error unknown_hosts(const std::string& what) {
  return Error{
      Code::kInvalidArgument, "the hosts of the Flux instance are not known: " + what,
      "list the hosts with -H host1,host2,..., or use only this one with --transport local\n"
      "or, if the instance is not meant: env -u FLUX_URI ivyrun ..."};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find_first_of("\r\n"));
}

}  // namespace

// Flux removes the variable from the environment of an instance's shell or script.
bool is_flux_task(const Environment& environment) {
  return find_variable(environment, "FLUX_JOB_ID") != nullptr;
}

Result<std::optional<BatchHosts>> read_flux_hosts(const Environment& environment,
                                                  AllocationInputs& inputs) {
  const std::string* const uri = find_variable(environment, "FLUX_URI");
  const bool is_inside = uri != nullptr && !uri->empty() && !is_flux_task(environment);
  if (!is_inside) return std::optional<BatchHosts>();
  const Result<std::string> list = inputs.program({"flux", "getattr", "hostlist"});
  if (!list.ok()) return unknown_hosts(list.error().message);
  const std::string text = first_line(*list);
  if (text.empty()) return unknown_hosts(std::string(kGetHosts) + " printed nothing");
  Result<std::vector<std::string>> hosts = distinct_hosts({text}, kGetHosts);
  if (!hosts.ok()) return unknown_hosts(hosts.error().message);
  if (hosts->size() > 1) {
    const Result<std::string> owner = inputs.program({"flux", "getattr", "security.owner"});
    if (owner.ok() && first_line(*owner) != std::to_string(inputs.user_id()))
      return std::optional<BatchHosts>();
  }
  return std::optional<BatchHosts>(BatchHosts{"the Flux instance", std::move(hosts).value()});
}

}  // namespace ivy
