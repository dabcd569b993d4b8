#include "agent/pmix/segment_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace ivy {
namespace {

constexpr std::string_view kPrefix = "pmix-";
// Another server may sweep a directory between its making and its locking.
constexpr int kTries = 10;

// A directory, no link, ours alone.
bool is_private(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

// None: another server holds it, or it is gone.
Descriptor locked(const std::string& path) {
  Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened {};
  struct stat named {};
  if (!directory || flock(directory.get(), LOCK_EX | LOCK_NB) != 0 ||
      fstat(directory.get(), &opened) != 0 || lstat(path.c_str(), &named) != 0 ||
      opened.st_ino != named.st_ino)
    return Descriptor();
  return directory;
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void sweep(const std::string& parent) {
  std::error_code error;
  std::filesystem::directory_iterator entries(parent, error);
  for (; !error && entries != std::filesystem::end(entries); entries.increment(error)) {
    const std::string path = entries->path();
    if (!entries->path().filename().string().starts_with(kPrefix)) continue;
    if (const Descriptor dead = locked(path)) remove_tree(path);
  }
}

}  // namespace

SegmentDirectory::SegmentDirectory(const std::string& place, const std::string& name,
                                   std::string otherwise)
    : path_(std::move(otherwise)) {
  const std::string parent = place + "/ivyrun-" + std::to_string(geteuid());
  mkdir(parent.c_str(), 0700);
  if (!is_private(parent)) return;
  sweep(parent);
  const std::string own = parent + "/" + std::string(kPrefix) + name;
  for (int i = 0; i < kTries && !lock_; ++i) {
    mkdir(own.c_str(), 0700);
    lock_ = locked(own);
  }
  if (lock_) path_ = own;
}

SegmentDirectory::~SegmentDirectory() {
  if (lock_) remove_tree(path_);
}

}  // namespace ivy
