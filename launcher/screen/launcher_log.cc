// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/launcher_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "launcher/screen/rank_file_set.h"
#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

// Limit of messages from before the file is open: a few lines per host.
constexpr std::size_t kMaxEarlyBytes = 1u << 20;

}  // namespace

LauncherLog::LauncherLog(std::string folder, std::string job_id, FileEvents& owner)
    : folder_(std::move(folder)),
      job_id_(std::move(job_id)),
      writer_(kMaxEarlyBytes, [&owner] { owner.file_progressed(); }) {}

LauncherLog::~LauncherLog() {
  if (file_ != 0) writer_.close(file_);
  writer_.wait_idle(RankFileSet::kCloseLimit);
}

void LauncherLog::open(std::function<void(const Result<void>&)> opened) {
  opened_ = std::move(opened);
  file_ = writer_.open([folder = folder_, copy = descriptor_] {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    const int fd = log_opener(path_in(folder), /*appends=*/true)();
    if (fd >= 0) copy->reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return fd;
  });
  writer_.write(file_,
                "ivyrun: job " + job_id_ + ", launcher pid " + std::to_string(getpid()) + "\n");
  writer_.write(file_, std::exchange(early_, {}));
}

void LauncherLog::write(std::string_view raw) {
  const std::string text = escape_control(raw);
  if (file_ == 0) {
    if (early_.size() < kMaxEarlyBytes) early_ += text;
  } else if (writer_.has_room()) {
    writer_.write(file_, text);
  } else if (write_error_.empty()) {
    write_error_ =
        "write " + path_in(folder_) + ": the file system does not respond, so lines are missing";
  }
}

void LauncherLog::take_done() {
  for (const FileWriter::Done& done : writer_.take_done()) {
    if (done.step == FileWriter::Step::kOpen) {
      Result<void> opened;
      if (done.errno_value != 0) {
        Error error = errno_error(Code::kPermissionDenied, "--log-dir: open " + path_in(folder_),
                                  done.errno_value);
        error.fix = "choose a directory that you can write to: --log-dir DIR";
        opened = error;
      }
      std::exchange(opened_, nullptr)(opened);
    } else if (done.errno_value != 0 && write_error_.empty()) {
      write_error_ =
          errno_error(Code::kResourceExhausted, "write " + path_in(folder_), done.errno_value)
              .message;
    }
  }
}

}  // namespace ivy
