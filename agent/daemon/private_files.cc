#include "agent/daemon/private_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::chrono::seconds kLockPatience{10};
constexpr std::chrono::milliseconds kLockPause{20};

std::string mode_text(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

// An error with errno's text and advice for the owner.
Error file_error(Code code, const std::string& what, int errno_value) {
  Error error = errno_error(code, what, errno_value);
  if (errno_value == ENOSPC || errno_value == EDQUOT) {
    error.fix = "make room there, then call this again";
  } else if (errno_value == EACCES || errno_value == EPERM || errno_value == EROFS ||
             errno_value == ENOTDIR || errno_value == EEXIST) {
    error.fix = "choose a directory that belongs to you, with --out DIR or --ca DIR";
  } else {
    error.fix = "put that right, then call this again";
  }
  return error;
}

std::string temporary_name(const std::string& name) {
  return "." + name + "." + std::to_string(getpid()) + ".new";
}

Result<void> write_temporary(int directory, const std::string& directory_path,
                             const FileContents& file) {
  const std::string name = temporary_name(file.name);
  const std::string path = directory_path + "/" + name;
  unlinkat(directory, name.c_str(), 0);  // A process with our number may have left one.
  const Descriptor fd(openat(directory, name.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, file.mode));
  if (fd.get() < 0) return file_error(Code::kUnavailable, "make " + path, errno);
  // The umask may have removed bits from the mode.
  if (fchmod(fd.get(), file.mode) != 0) {
    return file_error(Code::kUnavailable, "chmod " + path, errno);
  }
  if (!write_all(fd.get(), file.text) || fsync(fd.get()) != 0)
    return file_error(Code::kUnavailable, "write " + path, errno);
  return {};
}

void remove_temporaries(int directory, const std::vector<FileContents>& files) {
  for (const FileContents& file : files) {
    unlinkat(directory, temporary_name(file.name).c_str(), 0);
  }
}

Result<void> rename_all(int directory, const std::string& directory_path,
                        const std::vector<FileContents>& files) {
  for (const FileContents& file : files) {
    if (renameat(directory, temporary_name(file.name).c_str(), directory, file.name.c_str()) != 0) {
      return file_error(Code::kUnavailable, "replace " + directory_path + "/" + file.name, errno);
    }
  }
  if (fsync(directory) != 0) return file_error(Code::kUnavailable, "sync " + directory_path, errno);
  return {};
}

Result<void> make_with_parents(const std::string& path) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return file_error(Code::kUnavailable, "mkdir " + part, errno);
    }
    if (at == std::string::npos) return {};
  }
}

}  // namespace

Result<void> check_private_directory(const std::string& path, DirectoryAccess access) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return file_error(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, path, errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    return Error{Code::kInvalidArgument, path + " is not a directory", "name another place"};
  }
  if (status.st_uid != geteuid()) {
    return Error{Code::kPermissionDenied,
                 path + " belongs to uid " + std::to_string(status.st_uid) + ", not to uid " +
                     std::to_string(geteuid()),
                 "name another place, or run this as its owner"};
  }
  const bool is_private = access == DirectoryAccess::kNobody;
  if ((status.st_mode & (is_private ? 077 : 022)) != 0) {
    return Error{Code::kPermissionDenied,
                 path +
                     (is_private ? " is open to other users (mode "
                                 : " can be changed by other users (mode ") +
                     mode_text(status.st_mode) + ")",
                 "chmod " + std::string(is_private ? "700 " : "go-w ") + path};
  }
  return {};
}

Result<void> make_private_directory(const std::string& path, DirectoryAccess access) {
  IVY_CHECK(make_with_parents(path));
  return check_private_directory(path, access);
}

Result<void> write_files(const std::string& directory_path,
                         const std::vector<FileContents>& files) {
  const Descriptor directory(open(directory_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return file_error(Code::kUnavailable, "open " + directory_path, errno);
  for (const FileContents& file : files) {
    Result<void> written = write_temporary(directory.get(), directory_path, file);
    if (!written) {
      remove_temporaries(directory.get(), files);
      return written;
    }
  }
  Result<void> renamed = rename_all(directory.get(), directory_path, files);
  if (!renamed) remove_temporaries(directory.get(), files);
  return renamed;
}

Result<std::string> read_regular_file(const std::string& path, std::size_t max_bytes) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    return file_error(errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied, "open " + path,
                      errno);
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error{Code::kFailedPrecondition, path + " is not a file",
                 "move it away, or name another directory"};
  }
  std::optional<std::string> text = read_from(fd.get(), max_bytes + 1);
  if (!text) return file_error(Code::kUnavailable, "read " + path, errno);
  if (text->size() > max_bytes) {
    return Error{Code::kFailedPrecondition,
                 path + " is longer than " + std::to_string(max_bytes) + " bytes",
                 "put the file back from a copy"};
  }
  return *std::move(text);
}

bool file_exists(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

Result<DirectoryLock> DirectoryLock::take(const std::string& directory) {
  Descriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) {
    return file_error(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, "open " + directory,
                      errno);
  }
  const auto deadline = steady_now() + kLockPatience;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return file_error(Code::kUnavailable, "lock " + directory, errno);
    }
    if (steady_now() > deadline) {
      return Error{Code::kUnavailable,
                   "another process has been working in " + directory + " for 10 s",
                   "find it with `fuser -v " + directory + "` and try again"};
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return DirectoryLock(std::move(fd));
}

}  // namespace ivy
