// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/session_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "proto/os/own_directory.h"

namespace ivy {

Result<SessionFiles> SessionFiles::make(const std::string& job_directory,
                                        std::uint32_t generation) {
  IVY_CHECK(make_own_directory(job_directory + "/pmix"));
  SessionFiles files(job_directory + "/pmix/" + std::to_string(generation));
  std::error_code ignored;
  std::filesystem::remove_all(files.path_, ignored);
  IVY_CHECK(make_own_directory(files.path_));
  IVY_CHECK(make_own_directory(files.server()));
  IVY_CHECK(make_own_directory(files.session()));
  return files;
}

SessionFiles::SessionFiles(SessionFiles&& other) noexcept : path_(std::exchange(other.path_, {})) {}

SessionFiles::~SessionFiles() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ivy
