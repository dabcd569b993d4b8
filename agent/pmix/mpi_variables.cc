// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/mpi_variables.h"

#include <cstddef>
#include <utility>

namespace ivy {
namespace {

// The key that Open MPI's ranks present to each other on Omni-Path: two numbers of 16 digits, the
// same for the whole job.
std::string transport_key(const std::string& job_id) {
  constexpr std::size_t kHalf = 16;
  return job_id.substr(0, kHalf) + "-" + job_id.substr(kHalf);
}

}  // namespace

std::vector<std::string> mpi_variables(std::vector<std::string> from_libpmix,
                                       const WorkerSettings& settings, const RankProcess& rank) {
  std::vector<std::string> variables = std::move(from_libpmix);
  const auto add = [&](const std::string& name, const std::string& value) {
    if (rank.variable(name).empty()) variables.push_back(name + "=" + value);
  };
  // Open MPI 4.1 looks for a server only if it believes that a launcher started it directly; it
  // then leaves binding to that launcher. This variable makes it believe that the launcher is
  // jsrun.
  add("JSM_JSRUN_PORT", "1");
  add("OMPI_MCA_orte_precondition_transports", transport_key(settings.job_id));
  // Open MPI 4.1 does not read PMIX_NODE_OVERSUBSCRIBED.
  if (settings.is_oversubscribed) add("OMPI_MCA_mpi_oversubscribe", "1");
  // Open MPI 5, too, knows the first one, though it calls that component btl_sm.
  for (const char* owner : {"btl_vader", "osc_sm", "osc_rdma"})
    add("OMPI_MCA_" + std::string(owner) + "_backing_directory", settings.segment_directory);
  return variables;
}

}  // namespace ivy
