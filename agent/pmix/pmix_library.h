// SPDX-License-Identifier: Apache-2.0
// libpmix, loaded at run time: the build needs only its headers. Thread: any.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <string>
#include <string_view>
#include <vector>

#include "agent/pmix/rank_process.h"
#include "proto/contract/status.h"

namespace ivy {

// The functions of libpmix that are used, named as in libpmix without "PMIx_".
struct PmixLibrary {
  decltype(&PMIx_Get_version) get_version = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  decltype(&PMIx_Info_load) info_load = nullptr;
  decltype(&PMIx_Value_destruct) value_destruct = nullptr;
  decltype(&PMIx_generate_regex) generate_regex = nullptr;
  decltype(&PMIx_generate_ppn) generate_ppn = nullptr;
  decltype(&PMIx_Register_event_handler) register_event_handler = nullptr;
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_server_dmodex_request) dmodex_request = nullptr;

  std::string text_of(pmix_status_t status) const { return error_string(status); }
};

// Returns whether ranks can create groups through a library of this version ("OpenPMIx 4.2.2rc2
// (...)"). 4.2.4 changed the messages about groups: newer ranks would misread an older library's
// answer as a number of members.
bool serves_groups(std::string_view version);

// Returns the possible locations of libpmix, in order of preference. If the caller (`chosen`) or
// the first rank has set IVY_PMIX_LIB, that is the only location. Otherwise: the library that the
// rank has already loaded, the library next to the Open MPI of the rank's Python environment, whose
// wheel contains one, and the system loader's. The order matters: a server older than its ranks
// cannot create groups for them.
std::vector<std::string> pmix_library_paths(const std::string& chosen, const RankProcess& rank);

// Loads the first library that exists. The message of NotFound says what to install;
// FailedPrecondition means that the library is too old.
Result<PmixLibrary> open_pmix_library(const std::vector<std::string>& paths);

}  // namespace ivy
