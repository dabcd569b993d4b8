#include "launcher/screen/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace ivy {
namespace {

Code code_of(int errno_value) {
  switch (errno_value) {
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    default:
      return Code::kInvalidArgument;
  }
}

Error open_error(const std::string& what, int errno_value) {
  Error error = errno_error(code_of(errno_value), "--log-dir: " + what, errno_value);
  error.fix = errno_value == EMFILE ? "raise the limit of open files: ulimit -n"
                                    : "choose a folder that you can write to: --log-dir DIR";
  return error;
}

}  // namespace

std::string log_folder(const std::string& directory, const std::string& job_id,
                       std::uint32_t generation) {
  return directory + "/" + job_id + "/" + std::to_string(generation);
}

std::string log_file_name(int rank, int stream) {
  char text[32];
  std::snprintf(text, sizeof text, "rank%05d.%s", rank, stream == 2 ? "err" : "out");
  return text;
}

LogFiles::~LogFiles() { close_all(); }

void LogFiles::close_all() {
  for (auto& [rank, files] : ranks_)
    for (File& file : files)
      if (file.fd >= 0) ::close(file.fd);
  ranks_.clear();
}

std::string LogFiles::name(int rank, int stream) const {
  return folder_ + "/" + log_file_name(rank, stream);
}

Result<void> LogFiles::open_all(const std::string& directory, const std::string& job_id,
                                std::uint32_t generation, const std::vector<int>& ranks,
                                bool appends) {
  close_all();
  folder_ = log_folder(directory, job_id, generation);
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return open_error("make folder " + folder_, error.value());
  for (const int rank : ranks) {
    std::array<File, 2>& files = ranks_[rank];
    for (int stream = 1; stream <= 2; ++stream) {
      const std::string path = name(rank, stream);
      const int fd =
          open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : O_TRUNC), 0666);
      if (fd < 0) {
        const int errno_value = errno;
        close_all();
        return open_error("open " + path, errno_value);
      }
      files[static_cast<std::size_t>(stream - 1)].fd = fd;
    }
  }
  return {};
}

void LogFiles::write(int rank, int stream, std::string_view bytes) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  File& file = found->second[stream == 2 ? 1 : 0];
  if (file.fd < 0 || file.failed) return;
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.fd, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    file.failed = true;
    if (++failed_files_ == 1)
      complaint_ =
          errno_error(Code::kResourceExhausted, "write " + name(rank, stream), errno).message +
          "; what this rank printed from then on is not in the file";
    return;
  }
}

void LogFiles::close(int rank, int stream) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  File& file = found->second[stream == 2 ? 1 : 0];
  // Network file systems report a full disk only here.
  if (file.fd >= 0 && ::close(file.fd) != 0 && complaint_.empty())
    complaint_ =
        errno_error(Code::kResourceExhausted, "close " + name(rank, stream), errno).message;
  file.fd = -1;
}

std::string LogFiles::path(int rank, int stream) const {
  return ranks_.contains(rank) ? name(rank, stream) : "";
}

}  // namespace ivy
