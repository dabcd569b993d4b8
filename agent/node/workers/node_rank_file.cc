// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/node_rank_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "proto/contract/log_names.h"

namespace ivy {
namespace {

std::string path_of(const NodeRankFile::Name& name) {
  return log_folder(name.directory, name.job_id, name.generation) + "/" +
         log_file_name(static_cast<int>(name.rank), name.stream);
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

NodeRankFile::NodeRankFile(FileWriter& writer, const Name& name)
    : writer_(&writer),
      path_(path_of(name)),
      file_(writer.open(
          [path = path_, offset = name.offset] { return open_with_directories(path, offset); })) {}

}  // namespace ivy
