#include "rendezvous/server/token_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "proto/os/descriptor.h"

namespace ivy::store {
namespace {

constexpr mode_t kOthers = 077;

bool is_ours(const struct stat& file) { return file.st_uid == geteuid() || file.st_uid == 0; }

Result<void> check_private(const struct stat& file, const std::string& path) {
  if (!S_ISREG(file.st_mode)) return Error{Code::kInvalidArgument, path + " is no regular file"};
  if (is_ours(file) && (file.st_mode & kOthers) == 0) return {};
  return Error{Code::kPermissionDenied,
               "token file " + path + " can be read by others than its owner",
               "chmod 0400 " + path};
}

}  // namespace

Result<std::string> read_token(const std::string& path, bool is_private) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return errno_error(Code::kNotFound, "token file " + path, errno);
  struct stat file {};
  Result<void> fit;
  if (is_private && fstat(fd.get(), &file) == 0) fit = check_private(file, path);
  std::array<char, kTokenBytes + 1> bytes{};
  const ssize_t count = fit.ok() ? read(fd.get(), bytes.data(), bytes.size()) : -1;
  if (!fit.ok()) return fit.error();
  if (count != static_cast<ssize_t>(kTokenBytes)) {
    return Error{Code::kInvalidArgument,
                 "token file " + path + " must hold " + std::to_string(kTokenBytes) + " bytes"};
  }
  return std::string(bytes.data(), kTokenBytes);
}

Result<TokenDirectory> TokenDirectory::open(const std::string& path) {
  struct stat directory {};
  if (stat(path.c_str(), &directory) != 0)
    return errno_error(Code::kNotFound, "token directory " + path, errno);
  if (!S_ISDIR(directory.st_mode)) return Error{Code::kInvalidArgument, path + " is no directory"};
  if (!is_ours(directory) || (directory.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error{Code::kPermissionDenied, "others can write to the token directory " + path,
                 "chmod 0700 " + path};
  }
  return TokenDirectory(path);
}

Result<TokenStamp> TokenDirectory::look(const std::string& job_id) const {
  const std::string path = path_of(job_id);
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return errno_error(Code::kNotFound, path, errno);
  IVY_CHECK(check_private(file, path));
  return TokenStamp{file.st_dev, file.st_ino,
                    file.st_ctim.tv_sec * std::int64_t{1'000'000'000} + file.st_ctim.tv_nsec};
}

}  // namespace ivy::store
