#include "agent/pmix/segment_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "proto/os/files.h"
#include "proto/os/own_directory.h"

namespace ivy {
namespace {

constexpr std::string_view kPrefix = "pmix-";
// Another server may sweep a directory between its making and its locking.
constexpr int kTries = 10;

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void sweep(const std::string& parent) {
  for (const std::string& name : names_in(parent)) {
    const std::string path = parent + "/" + name;
    if (!name.starts_with(kPrefix)) continue;
    if (const Descriptor dead = lock_directory(path)) remove_tree(path);
  }
}

}  // namespace

SegmentDirectory::SegmentDirectory(const std::string& place, const std::string& name,
                                   std::string otherwise)
    : path_(std::move(otherwise)) {
  const std::string parent = place + "/ivyrun-" + std::to_string(geteuid());
  if (!make_own_directory(parent)) return;
  sweep(parent);
  const std::string own = parent + "/" + std::string(kPrefix) + name;
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
