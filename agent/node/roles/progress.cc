// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/progress.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/node/roles/fetch_search.h"
#include "proto/contract/exit_code.h"
#include "proto/os/files.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

// More files than any directory of checkpoints has. Each costs a stat().
constexpr std::size_t kMaxProgressFiles = 100'000;
// A file that holds the number of a step is shorter.
constexpr std::size_t kMaxProgressText = 64;

}  // namespace

ProgressAnswer newest_file(const ProgressQuestion& question) {
  ProgressAnswer answer;
  answer.set_number(question.number());
  FileSearch search(question.directory(), kMaxProgressFiles, [] {});
  search.add(question.pattern(), 0);
  if (search.is_too_many()) {
    answer.set_error("more than " + std::to_string(kMaxProgressFiles) + " files match");
    return answer;
  }
  if (search.files().empty() && !search.problems().empty()) {
    answer.set_error(search.problems().front().path + ": " + search.problems().front().why);
    return answer;
  }
  std::string opened;
  std::int64_t size = 0;
  for (const FileSearch::File& file : search.files()) {
    struct stat status {};
    // A file that has just been removed is none.
    if (stat(file.opened.c_str(), &status) != 0) continue;
    const std::int64_t mtime_ns =
        status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
    const bool is_newer = answer.path().empty() || mtime_ns > answer.mtime_ns() ||
                          (mtime_ns == answer.mtime_ns() && file.path > answer.path());
    if (!is_newer) continue;
    answer.set_path(file.path);
    answer.set_mtime_ns(mtime_ns);
    opened = file.opened;
    size = status.st_size;
  }
  if (answer.path().empty() || size > static_cast<std::int64_t>(kMaxProgressText)) return answer;
  // O_NONBLOCK: it may have been replaced by a pipe.
  answer.set_text(
      read_file(opened, kMaxProgressText, O_NONBLOCK | O_NOCTTY).value_or(std::string()));
  return answer;
}

int run_progress() {
  stage::MessageSplitter questions;
  for (;;) {
    std::string bytes(4096, '\0');
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0 ? 0 : kExitFailed;
    questions.feed(std::string_view(bytes).substr(0, static_cast<std::size_t>(count)));
    for (;;) {
      const Result<std::optional<std::string>> message = questions.next();
      if (!message.ok()) return kExitFailed;
      if (!*message) break;
      ProgressQuestion question;
      if (!question.ParseFromString(**message)) return kExitFailed;
      if (!write_all(STDOUT_FILENO, stage::framed(newest_file(question).SerializeAsString())))
        return kExitFailed;
    }
  }
}

}  // namespace ivy
