// SPDX-License-Identifier: Apache-2.0
#include "proto/os/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "proto/os/descriptor.h"

namespace ivy {

Result<std::string> current_directory() {
  char physical[PATH_MAX];
  if (getcwd(physical, sizeof physical) == nullptr) {
    Error error = errno_error(Code::kNotFound, "the current directory cannot be used", errno);
    error.fix = "change to an existing directory; this one was probably deleted";
    return error;
  }
  const char* const named = getenv("PWD");
  struct stat by_name {};
  struct stat here {};
  if (named != nullptr && named[0] == '/' && stat(named, &by_name) == 0 && stat(".", &here) == 0 &&
      by_name.st_dev == here.st_dev && by_name.st_ino == here.st_ino) {
    return std::string(named);
  }
  return std::string(physical);
}

std::optional<std::string> read_from(int fd, std::size_t max_bytes) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < max_bytes) {
    const ssize_t count = read(fd, buffer.data(), std::min(buffer.size(), max_bytes - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

std::optional<std::string> read_file(const std::string& path, std::size_t max_bytes, int flags) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!fd) return std::nullopt;
  return read_from(fd.get(), max_bytes);
}

int reserve_space(int fd, std::uint64_t from, std::uint64_t bytes) {
  // In parts, because a signal undoes the call that it interrupts: under a profiler's timer, one
  // call for much memory would never finish.
  constexpr std::uint64_t kPartBytes = 1u << 20;
  while (bytes > 0) {
    const std::uint64_t part = std::min(bytes, kPartBytes);
    const int failed = posix_fallocate(fd, static_cast<off_t>(from), static_cast<off_t>(part));
    if (failed == EINTR) continue;
    if (failed != 0) return failed;
    from += part;
    bytes -= part;
  }
  return 0;
}

bool write_all(int fd, std::string_view bytes, WhenFull when_full) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (count == 0) {
      errno = ENOSPC;
      return false;
    } else if (errno == EAGAIN && when_full == WhenFull::kWait) {
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool overwrite(const std::string& path, std::string_view bytes) {
  const Descriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  return fd && write_all(fd.get(), bytes);
}

bool write_whole(const std::string& path, std::string_view bytes, Durability durability) {
  const std::string fresh = path + ".new";
  const Descriptor fd(
      open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return false;
  if (write_all(fd.get(), bytes) && (durability != Durability::kSynced || fsync(fd.get()) == 0) &&
      rename(fresh.c_str(), path.c_str()) == 0) {
    return true;
  }
  const int error = errno;
  unlink(fresh.c_str());
  errno = error;
  return false;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const OpenDirectory entries(opendir(directory.c_str()));
  while (const dirent* const entry = entries ? readdir(entries.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace ivy
