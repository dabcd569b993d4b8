// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/rank_file_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

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

Error open_error(const std::string& flag, const std::string& what, int errno_value) {
  Error error = errno_error(code_of(errno_value), flag + ": " + what, errno_value);
  error.fix = errno_value == EMFILE ? "raise the limit of open files: ulimit -n"
                                    : "choose a directory that you can write to: " + flag +
                                          (flag == "--output" ? " PATTERN" : " DIR");
  return error;
}

// Returns an error if two ranks have the same file: their lines would be torn.
std::optional<Error> shared_by_two(const RankFileSet::Request& request) {
  std::map<std::string_view, int> owners;
  for (const auto& [rank, paths] : request.paths)
    for (const std::string& path : paths) {
      const int owner = owners.emplace(path, rank).first->second;
      if (owner == rank) continue;
      return Error{Code::kInvalidArgument,
                   request.flag + ": ranks " + std::to_string(owner) + " and " +
                       std::to_string(rank) + " would write to the same file, " + path,
                   "add %r, the rank, to the pattern"};
    }
  return std::nullopt;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Makes a directory. Returns a descriptor of it, or -errno.
int make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return -error.value();
  const int fd = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

}  // namespace

void link_latest(const std::string& directory, const std::string& job_id) {
  const std::filesystem::path link = directory + "/latest";
  const std::filesystem::path fresh = directory + "/.latest." + job_id;
  std::error_code error;
  const std::filesystem::file_status old = std::filesystem::symlink_status(link, error);
  if (std::filesystem::exists(old) && !std::filesystem::is_symlink(old)) return;
  std::filesystem::create_directory_symlink(job_id, fresh, error);
  if (!error) std::filesystem::rename(fresh, link, error);
  if (error) std::filesystem::remove(fresh, error);
}

FileWriter::Opener log_opener(const std::string& path, bool appends,
                              std::shared_ptr<std::uint64_t> size) {
  return [path, appends, size] {
    const int mode =
        O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (appends ? O_APPEND : O_TRUNC);
    const int fd = ::open(path.c_str(), mode, 0666);
    if (fd < 0) return -errno;
    struct stat status {};
    if (size && fstat(fd, &status) == 0) *size = static_cast<std::uint64_t>(status.st_size);
    return fd;
  };
}

RankFileSet::~RankFileSet() {
  close_all();
  writer_.wait_idle(kCloseLimit);
}

void RankFileSet::close_all() {
  for (auto& [rank, files] : ranks_)
    for (const int stream : {1, 2}) close(rank, stream);
  ranks_.clear();
}

void RankFileSet::open_all(const Request& request,
                           std::function<void(const Result<void>&)> opened) {
  close_all();
  flag_ = request.flag;
  open_error_.reset();
  opened_ = nullptr;
  if (const auto shared = shared_by_two(request)) return opened(*shared);
  opened_ = std::move(opened);
  opening_ = 0;
  first_opened_ = 0;
  open_folders(request);
  for (const auto& [rank, paths] : request.paths) open_rank(rank, request);
}

// Makes each directory like a file, through an opener, so that a failure names the directory.
void RankFileSet::open_folders(const Request& request) {
  std::set<std::string> folders = request.folders;
  for (const auto& [rank, paths] : request.paths)
    for (const std::string& path : paths) folders.insert(folder_of(path));
  for (const std::string& folder : folders) {
    const bool is_last = folder == *folders.rbegin();
    const FileWriter::File file = writer_.open([folder, is_last, done = request.on_folders] {
      const int fd = make_folder(folder);
      if (fd >= 0 && is_last && done) done();
      return fd;
    });
    if (first_opened_ == 0) first_opened_ = file;
    names_[file] = {folder, true, false};
    writer_.close(file);
    ++opening_;
  }
}

void RankFileSet::open_rank(int rank, const Request& request) {
  const std::array<std::string, 2>& paths = request.paths.at(rank);
  std::array<File, 2>& files = ranks_[rank];
  for (const std::size_t index : {0u, 1u}) {
    if (index == 1 && paths[0] == paths[1]) {
      files[1] = files[0];
      return;
    }
    File& file = files[index];
    file.path = paths[index];
    file.size = std::make_shared<std::uint64_t>(0);
    file.file = writer_.open(log_opener(file.path, request.appends, file.size));
    names_[file.file] = {file.path, false, false};
    ++opening_;
  }
}

void RankFileSet::write(int rank, int stream, std::string_view bytes) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  const File& file = found->second[stream == 2 ? 1 : 0];
  if (file.file != 0) writer_.write(file.file, bytes);
}

void RankFileSet::close(int rank, int stream) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  const FileWriter::File file = std::exchange(found->second[stream == 2 ? 1 : 0].file, 0);
  if (file != 0 && file != found->second[stream == 2 ? 0 : 1].file) writer_.close(file);
}

const std::string& RankFileSet::path(int rank, int stream) const {
  static const std::string kNone;
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? kNone : found->second[stream == 2 ? 1 : 0].path;
}

std::uint64_t RankFileSet::size_at_open(int rank, int stream) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? 0 : *found->second[stream == 2 ? 1 : 0].size;
}

void RankFileSet::take_done() {
  for (const FileWriter::Done& done : writer_.take_done()) {
    written_ += done.bytes;
    Name& name = names_[done.file];
    const bool is_opening = done.step == FileWriter::Step::kOpen && done.file >= first_opened_;
    if (done.errno_value != 0 && !std::exchange(name.failed, true)) failed(name, done);
    if (done.step == FileWriter::Step::kClose) names_.erase(done.file);
    if (is_opening && --opening_ == 0) answer();
  }
}

void RankFileSet::failed(const Name& name, const FileWriter::Done& done) {
  if (done.step == FileWriter::Step::kOpen) {
    if (!open_error_ && done.file >= first_opened_)
      open_error_ = open_error(flag_, (name.is_folder ? "create directory " : "open ") + name.path,
                               done.errno_value);
    return;
  }
  if (!write_error_.empty()) return;
  // Network file systems may report a full disk only when a file is closed.
  const bool is_write = done.step == FileWriter::Step::kWrite;
  write_error_ = errno_error(Code::kResourceExhausted, (is_write ? "write " : "close ") + name.path,
                             done.errno_value)
                     .message +
                 (is_write ? "; the file lacks the rank's later output" : "");
}

void RankFileSet::answer() {
  if (open_error_) close_all();
  const auto opened = std::exchange(opened_, nullptr);
  if (opened) opened(open_error_ ? Result<void>(*open_error_) : Result<void>());
}

}  // namespace ivy
