// Which jobs a stand-alone server serves: a directory with one file per job, named by the job's id
// (32 hexadecimal digits), which holds the job's token (32 bytes) and can be read by its owner
// only. A file that appears is a job at once, one that goes or changes was one: nothing is kept of
// it.
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

// The token in this file. `is_private`: only a regular file of ours (or root's) that nobody else
// can read will do.
Result<std::string> read_token(const std::string& path, bool is_private);

// What changes when a token file is written or replaced.
struct TokenStamp {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t changed_ns = 0;
  bool operator==(const TokenStamp&) const = default;
};

class TokenDirectory {
 public:
  // PermissionDenied: others can write to it, so they could name jobs.
  static Result<TokenDirectory> open(const std::string& path);
  std::string path_of(const std::string& job_id) const { return path_ + "/" + job_id; }
  // That the job has a token that can be used. NotFound: it is none of ours.
  Result<TokenStamp> look(const std::string& job_id) const;

 private:
  explicit TokenDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace ivy::store
