// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/pod.h"

#include <vector>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kIndexVariable = "JOB_COMPLETION_INDEX";
// Set in every container of every pod.
constexpr std::string_view kClusterVariable = "KUBERNETES_SERVICE_HOST";

// Returns the first name in /etc/hosts that is `short_name` in some domain; empty if there is none.
// The kubelet writes "10.1.2.3 train-2.train.default.svc.cluster.local train-2".
std::string name_with_domain(std::string_view hosts_file, const std::string& short_name) {
  while (!hosts_file.empty()) {
    const std::string_view line = take_part(hosts_file, '\n');
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    for (std::size_t i = 1; i < words.size(); ++i)
      if (words[i].starts_with(short_name + ".")) return std::string(words[i]);
  }
  return {};
}

// The Job controller names pods JOB-INDEX, and the kubelet uses that as the host name.
IndexedPod indexed_pod(int index, const PodInputs& inputs) {
  IndexedPod pod;
  pod.index = index;
  const std::string suffix = "-" + std::to_string(index);
  const std::string short_name = inputs.host_name.substr(0, inputs.host_name.find('.'));
  if (!short_name.ends_with(suffix) || short_name.size() == suffix.size()) {
    pod.why_unknown = "its host name " + inputs.host_name + " does not end with " + suffix;
    return pod;
  }
  // With setHostnameAsFQDN, the host name has the domain already.
  const std::string name = inputs.host_name.size() > short_name.size()
                               ? inputs.host_name
                               : name_with_domain(inputs.hosts_file, short_name);
  if (name.empty()) {
    pod.why_unknown = "/etc/hosts has no name of " + short_name + " in a subdomain";
    return pod;
  }
  pod.own_name = name;
  pod.first_name = short_name.substr(0, short_name.size() - suffix.size()) + "-0" +
                   name.substr(short_name.size());
  return pod;
}

}  // namespace

bool may_be_pod(const Environment& environment) {
  return find_variable(environment, kIndexVariable) != nullptr ||
         find_variable(environment, kClusterVariable) != nullptr;
}

PodFacts pod_facts(const Environment& environment, const PodInputs& inputs) {
  PodFacts facts;
  // The container's first process, or the child of a small init or of a shell that is. A process of
  // `kubectl exec` has a parent outside of the container, whose number is 0.
  facts.is_main_program = find_variable(environment, kClusterVariable) != nullptr &&
                          (inputs.pid == 1 || inputs.parent_pid == 1);
  const std::string* const text = find_variable(environment, kIndexVariable);
  const std::optional<int> index = text == nullptr ? std::nullopt : to_number<int>(*text);
  if (index.value_or(-1) >= 0) facts.indexed = indexed_pod(*index, inputs);
  return facts;
}

}  // namespace ivy
