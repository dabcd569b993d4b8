// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launcher/screen/rank_file_set.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

constexpr std::size_t kLogBytes = 64u << 10;
// The last lines are searched in this many bytes of each file.
constexpr std::uint64_t kTailBytes = 64u << 10;

// Returns the offset at which the last lines of a file begin.
std::uint64_t offset_of_last(int fd, std::uint64_t size, int lines) {
  const std::uint64_t from = size > kTailBytes ? size - kTailBytes : 0;
  std::string tail(size - from, '\0');
  const ssize_t count = pread(fd, tail.data(), tail.size(), static_cast<off_t>(from));
  tail.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  std::size_t at = tail.size();
  for (int found = 0; at > 0; --at) {
    // A newline at the very end terminates the last line and does not start another.
    const bool begins_line = tail[at - 1] == '\n' && at != tail.size();
    if (begins_line && ++found == lines) break;
  }
  return lines == 0 ? size : from + at;
}

}  // namespace

LogReader::LogReader(const std::string& folder, const std::vector<int>& ranks) {
  for (const int rank : ranks)
    for (const int stream : {1, 2})
      files_.push_back(File{rank, stream, folder + "/" + log_file_name(rank, stream)});
}

void LogReader::skip_to_last(int lines) {
  for (File& file : files_) {
    const Descriptor opened(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (opened && fstat(opened.get(), &status) == 0)
      file.offset = offset_of_last(opened.get(), static_cast<std::uint64_t>(status.st_size), lines);
  }
}

bool LogReader::read_file(File& file, std::size_t& budget, const Feed& feed) {
  struct stat status {};
  const bool exists = stat(file.path.c_str(), &status) == 0;
  if (exists && static_cast<std::uint64_t>(status.st_size) <= file.offset) {
    any_opened_ = true;
    return true;
  }
  const Descriptor opened(exists ? open(file.path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  if (!opened) {
    if (error_.empty()) error_ = errno_error(Code::kNotFound, file.path, errno).message;
    return true;
  }
  any_opened_ = true;
  std::array<char, kLogBytes> buffer;
  bool at_end = false;
  while (!at_end && budget > 0) {
    const ssize_t count = pread(opened.get(), buffer.data(), std::min(buffer.size(), budget),
                                static_cast<off_t>(file.offset));
    if (count < 0 && errno == EINTR) continue;
    at_end = count <= 0;
    if (at_end) break;
    file.offset += static_cast<std::uint64_t>(count);
    budget -= static_cast<std::size_t>(count);
    feed(file.rank, file.stream, std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  }
  return at_end;
}

bool LogReader::read(std::size_t max_bytes, const Feed& feed) {
  for (; next_ < files_.size(); ++next_)
    if (!read_file(files_[next_], max_bytes, feed)) return false;
  next_ = 0;
  return true;
}

}  // namespace ivy
