#include "agent/pmix/session_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace ivy {
namespace {

Result<void> make_private(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return errno_error(Code::kPermissionDenied, "make directory " + path, errno);
}

}  // namespace

Result<SessionFiles> SessionFiles::make(const std::string& job_directory,
                                        std::uint32_t generation) {
  IVY_CHECK(make_private(job_directory + "/pmix"));
  SessionFiles files(job_directory + "/pmix/" + std::to_string(generation));
  std::error_code ignored;
  std::filesystem::remove_all(files.path_, ignored);
  IVY_CHECK(make_private(files.path_));
  IVY_CHECK(make_private(files.server()));
  IVY_CHECK(make_private(files.session()));
  return files;
}

SessionFiles::SessionFiles(SessionFiles&& other) noexcept : path_(std::exchange(other.path_, {})) {}

SessionFiles::~SessionFiles() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ivy
