// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/segment_directory.h"

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

// Another server may sweep a directory between its making and its locking.
constexpr int kTries = 10;

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

SegmentDirectory::SegmentDirectory(const std::string& place, const std::string& name,
                                   std::string otherwise)
    : path_(std::move(otherwise)) {
  const std::string parent = pmix_segments_parent(place, geteuid());
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
