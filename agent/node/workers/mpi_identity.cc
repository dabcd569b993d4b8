// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/mpi_identity.h"

#include <cstddef>

namespace ivy {
namespace {

std::string on_loopback(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

}  // namespace

// Uses PMI_PORT rather than PMI_FD, because Python's subprocess, for example, would close the
// descriptor.
Environment mpi_identity_variables(const MpiIdentity& identity) {
  const std::string rank = std::to_string(identity.rank);
  Environment variables = {
      {"PMI_PORT", on_loopback(identity.pmi_port)},
      {"PMI_ID", rank},
      {"PMI_RANK", rank},
      {"PMI_SIZE", std::to_string(identity.size)},
      {"MPI_LOCALRANKID", std::to_string(identity.local_rank)},
      {"MPI_LOCALNRANKS", std::to_string(identity.local_size)},
      // With the variables of PMIx next to these, MPICH 5 would not know which to use.
      {"MPIR_CVAR_PMI_VERSION", "1"},
      {"PMIX_NAMESPACE", identity.pmix_namespace},
      {"PMIX_RANK", rank},
      {"PMIX_HOSTNAME", identity.host_name},
      // The modules that ivy-pmix chooses for its libpmix.
      {"PMIX_SECURITY_MODE", "native"},
      {"PMIX_GDS_MODULE", "hash"},
      {"PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC"},
      {"PMIX_SERVER_TMPDIR", identity.directory},
      {"PMIX_SYSTEM_TMPDIR", identity.directory},
      // The Python hook uses this to distinguish our place from that of an mpirun in a worker.
      {"IVY_MPI_PLACE", on_loopback(identity.pmi_port) + " " + identity.pmix_namespace},
  };
  const std::string uri =
      "ivyrun-pmix." + std::to_string(identity.host) + ";tcp4://" + on_loopback(identity.pmix_port);
  // Each release of libpmix reads one of them.
  for (const char* release : {"2", "21", "3", "4", "41"})
    variables.push_back({"PMIX_SERVER_URI" + std::string(release), uri});
  return variables;
}

Environment mpi_settings(const MpiSettings& settings) {
  constexpr std::size_t kHalf = 16;
  Environment variables = {
      // Open MPI 4.1 looks for a server only if it believes that a launcher started it directly; it
      // then leaves binding to that launcher. This variable makes it believe that the launcher is
      // jsrun.
      {"JSM_JSRUN_PORT", "1"},
      // The key that ranks present to each other on Omni-Path: two numbers of 16 digits.
      {"OMPI_MCA_orte_precondition_transports",
       settings.job_id.substr(0, kHalf) + "-" + settings.job_id.substr(kHalf)},
  };
  if (settings.is_oversubscribed) {
    // Open MPI 4.1 does not read PMIX_NODE_OVERSUBSCRIBED.
    variables.push_back({"OMPI_MCA_mpi_oversubscribe", "1"});
    // Intel MPI learns this only from its own mpiexec. 2: a waiting rank calls sched_yield().
    variables.push_back({"I_MPI_THREAD_YIELD", "2"});
  }
  // Open MPI 5, too, knows the first one, though it calls that component btl_sm.
  for (const char* owner : {"btl_vader", "osc_sm", "osc_rdma"})
    variables.push_back(
        {"OMPI_MCA_" + std::string(owner) + "_backing_directory", settings.segment_directory});
  return variables;
}

bool is_old_mpi_setting(const std::string& value) {
  return value.find("/ivyrun-") != std::string::npos && value.find("/pmix-") != std::string::npos;
}

}  // namespace ivy
