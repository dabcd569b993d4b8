// The raw output of one worker's stream in a file on its own host (--log-to node):
// DIRECTORY/JOB/GENERATION/rank00027.out (or .err), overwritten when it exists.
// Thread: the supervisor's only thread. Writes block as long as the file system does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/status.h"

namespace ivy {

class RankLog {
 public:
  struct Name {
    std::string directory;
    std::string job_id;
    std::uint32_t generation = 0;
    std::uint32_t rank = 0;
    int stream = 1;  // 1 standard output, 2 standard error.
  };

  // Makes missing directories (0755 less umask) and the file.
  static Result<RankLog> open(const Name& name);

  RankLog(RankLog&& other) noexcept;
  RankLog& operator=(RankLog&& other) noexcept;
  ~RankLog();

  // An error (a full disk) closes the file; later calls do nothing. The job goes on without it.
  Result<void> write(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  RankLog(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::string path_;
};

}  // namespace ivy
