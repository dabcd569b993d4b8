// SPDX-License-Identifier: Apache-2.0
#include "proto/os/own_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "proto/os/files.h"

namespace ivy {

Result<void> check_own_directory(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0)
    return errno_error(errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied, path, errno);
  if (!S_ISDIR(status.st_mode))
    return Error{Code::kPermissionDenied, path + " is not a directory", "remove it"};
  if (status.st_uid != geteuid())
    return Error{Code::kPermissionDenied,
                 path + " belongs to uid " + std::to_string(status.st_uid) + ", not to uid " +
                     std::to_string(geteuid()),
                 "have it removed"};
  if ((status.st_mode & 077) != 0)
    return Error{Code::kPermissionDenied, path + " is open to other users", "chmod 700 " + path};
  return {};
}

bool is_own_directory(const std::string& path) { return check_own_directory(path).ok(); }

Result<void> make_own_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error(Code::kUnavailable, "mkdir " + path, errno);
  return check_own_directory(path);
}

bool still_exists(int fd, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

Descriptor make_again(const std::string& path) {
  const std::string parent = path.substr(0, path.rfind('/'));
  if (!make_own_directory(parent).ok() || !make_own_directory(path).ok()) return Descriptor();
  return lock_directory(path);
}

Descriptor lock_directory(const std::string& path) {
  Descriptor lock(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool is_held =
      lock && flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && still_exists(lock.get(), path);
  return is_held ? std::move(lock) : Descriptor();
}

void remove_unlocked(const std::string& parent, std::string_view prefix) {
  if (!is_own_directory(parent)) return;
  std::error_code ignored;
  for (const std::string& name : names_in(parent)) {
    const std::string path = parent + "/" + name;
    if (!name.starts_with(prefix)) continue;
    if (const Descriptor dead = lock_directory(path)) std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace ivy
