// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/rank_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace ivy {
namespace {

std::string path_of(const RankLog::Name& name) {
  char file[32];
  std::snprintf(file, sizeof file, "rank%05u.%s", name.rank, name.stream == 1 ? "out" : "err");
  return name.directory + "/" + name.job_id + "/" + std::to_string(name.generation) + "/" + file;
}

int open_with_directories(const std::string& path, std::uint64_t offset) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return -error.value();
  // O_NOFOLLOW: do not follow a link that another user has planted in a shared folder.
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset == 0 ? O_TRUNC : 0);
  const int fd = ::open(path.c_str(), flags, 0644);
  if (fd < 0) return -errno;
  // Not O_APPEND: the launcher may write the same bytes into the same file.
  lseek(fd, static_cast<off_t>(offset), SEEK_SET);
  return fd;
}

}  // namespace

RankLog::RankLog(FileWriter& writer, const Name& name)
    : writer_(&writer),
      path_(path_of(name)),
      file_(writer.open(
          [path = path_, offset = name.offset] { return open_with_directories(path, offset); })) {}

}  // namespace ivy
