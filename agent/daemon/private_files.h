// Files in directories that no other user may change: written whole or not at all, read with a
// limit. Thread: any; blocks.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The users besides the owner who may enter a directory.
enum class DirectoryAccess {
  kNobody,
  kReadable,  // Others may read, only the owner may write.
};

// Makes a directory with its parents (0700 each); one that exists must be ours and closed to
// others. PermissionDenied tells how it is open.
Result<void> make_private_directory(const std::string& path, DirectoryAccess access);
Result<void> check_private_directory(const std::string& path, DirectoryAccess access);

struct FileContents {
  std::string name;
  std::string text;
  mode_t mode = 0600;
};

// Writes all of them beside their places and syncs them before the first is renamed, in order: a
// full disk changes nothing. Unavailable names the file.
Result<void> write_files(const std::string& directory, const std::vector<FileContents>& files);

// NotFound when there is none; FailedPrecondition when it is longer than the limit or no file.
Result<std::string> read_regular_file(const std::string& path, std::size_t max_bytes);

bool file_exists(const std::string& path);

// This process's exclusive use of a directory, until it is destroyed.
class DirectoryLock {
 public:
  // Waits up to 10 s for another process; then Unavailable.
  static Result<DirectoryLock> take(const std::string& directory);

 private:
  explicit DirectoryLock(Descriptor fd) : fd_(std::move(fd)) {}
  Descriptor fd_;
};

}  // namespace ivy
