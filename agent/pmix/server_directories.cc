// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/server_directories.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "proto/os/own_directory.h"
#include "proto/wire/mpi_names.h"

namespace ivy {
namespace {

// Another server may remove a directory between its creation and its locking.
constexpr int kTries = 10;

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

Result<SessionFiles> SessionFiles::make(const std::string& job_directory,
                                        std::uint32_t generation) {
  IVY_CHECK(make_own_directory(job_directory + "/pmix"));
  SessionFiles files(job_directory + "/pmix/" + std::to_string(generation));
  remove_tree(files.path_);
  IVY_CHECK(make_own_directory(files.path_));
  IVY_CHECK(make_own_directory(files.server()));
  IVY_CHECK(make_own_directory(files.session()));
  return files;
}

SessionFiles::SessionFiles(SessionFiles&& other) noexcept : path_(std::exchange(other.path_, {})) {}

SessionFiles::~SessionFiles() {
  if (!path_.empty()) remove_tree(path_);
}

SegmentDirectory::SegmentDirectory(const std::string& base, const std::string& name,
                                   std::string otherwise)
    : path_(std::move(otherwise)) {
  const std::string parent = pmix_segments_parent(base, geteuid());
  if (!make_own_directory(parent)) return;
  remove_unlocked(parent, kPmixSegments);
  const std::string own = parent + "/" + std::string(kPmixSegments) + name;
  for (int i = 0; i < kTries && !lock_; ++i) {
    mkdir(own.c_str(), 0700);
    lock_ = lock_directory(own);
  }
  if (lock_) path_ = own;
}

SegmentDirectory::~SegmentDirectory() {
  if (lock_) remove_tree(path_);
}

}  // namespace ivy
