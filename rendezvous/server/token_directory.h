// The jobs that a stand-alone server serves: a directory with one file per job, named by the job's
// id (32 hexadecimal digits), which holds the job's token (32 bytes) and can be read by its owner
// only. A new file is a job at once; when a file is removed or changes, nothing is kept of its job.
//
// Plain POSIX. Thread: any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy::store {

inline constexpr std::size_t kTokenBytes = 32;

// Reads the token in this file. With `is_private` it must be a regular file of ours (or root's)
// that no other user can read.
Result<std::string> read_token(const std::string& path, bool is_private);

// Identifies a version of a token file: it changes when the file is written or replaced.
struct TokenStamp {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t changed_ns = 0;
  bool operator==(const TokenStamp&) const = default;
};

class TokenDirectory {
 public:
  // Fails with PermissionDenied if others can write to the directory, because they could add jobs.
  static Result<TokenDirectory> open(const std::string& path);
  std::string path_of(const std::string& job_id) const { return path_ + "/" + job_id; }
  // Checks that the job has a usable token. NotFound: there is no such job.
  Result<TokenStamp> look(const std::string& job_id) const;

 private:
  explicit TokenDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace ivy::store
