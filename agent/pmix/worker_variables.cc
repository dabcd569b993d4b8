#include "agent/pmix/worker_variables.h"

namespace ivy {

std::vector<std::string> worker_variables(std::vector<std::string> from_libpmix,
                                          std::string_view job_id) {
  std::vector<std::string> variables = std::move(from_libpmix);
  // Open MPI 4.1 looks for a server only if it believes that a launcher started it directly, and
  // then leaves binding to that launcher. It takes this as jsrun's mark.
  variables.emplace_back("JSM_JSRUN_PORT=1");
  // The key that Open MPI's ranks on Omni-Path show each other: two numbers of 16 digits, the same
  // for the whole job.
  constexpr std::size_t kHalf = 16;
  variables.push_back(
      "OMPI_MCA_orte_precondition_transports=" + std::string(job_id.substr(0, kHalf)) + "-" +
      std::string(job_id.substr(kHalf)));
  return variables;
}

}  // namespace ivy
