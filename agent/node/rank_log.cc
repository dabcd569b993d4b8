#include "agent/node/rank_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace ivy {

Result<RankLog> RankLog::open(const Name& name) {
  const std::string directory =
      name.directory + "/" + name.job_id + "/" + std::to_string(name.generation);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return errno_error(Code::kUnavailable, "log directory " + directory, error.value());
  char file[32];
  std::snprintf(file, sizeof file, "rank%05u.%s", name.rank, name.stream == 1 ? "out" : "err");
  std::string path = directory + "/" + file;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno_error(Code::kUnavailable, "log file " + path, errno);
  return RankLog(fd, std::move(path));
}

RankLog::RankLog(RankLog&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

RankLog& RankLog::operator=(RankLog&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

RankLog::~RankLog() {
  if (fd_ >= 0) close(fd_);
}

Result<void> RankLog::write(std::string_view bytes) {
  while (fd_ >= 0 && !bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      close(std::exchange(fd_, -1));
      return errno_error(Code::kResourceExhausted, "log file " + path_, error);
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace ivy
