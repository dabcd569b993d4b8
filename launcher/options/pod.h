// SPDX-License-Identifier: Apache-2.0
// What a Kubernetes pod shows of itself: whether the kubelet signals this process, and the place of
// the pod in an Indexed Job. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/env.h"

namespace ivy {

// The pod of an Indexed Job, or of a JobSet's job.
struct IndexedPod {
  int index = 0;  // JOB_COMPLETION_INDEX
  // The names of this pod and of the pod with index 0 in the headless service that the pod
  // template's `subdomain` names; both empty if they are not known.
  std::string own_name, first_name;
  std::string why_unknown;  // A clause for messages; empty if the names are known.
};

struct PodFacts {
  // ivyrun is the program of a container, so TERM means that the pod is being deleted.
  bool is_main_program = false;
  std::optional<IndexedPod> indexed;
};

// Facts about this process and its machine.
struct PodInputs {
  std::string host_name;
  std::string hosts_file;  // The text of /etc/hosts, which the kubelet writes.
  int pid = 0, parent_pid = 0;
};

// Returns whether the variables are those of a pod, so that reading PodInputs is worth it.
bool may_be_pod(const Environment& environment);
PodFacts pod_facts(const Environment& environment, const PodInputs& inputs);

}  // namespace ivy
