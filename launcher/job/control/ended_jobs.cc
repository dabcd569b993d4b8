// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/control/ended_jobs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/user_directories.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {
namespace {

constexpr std::time_t kRetentionSeconds = 24 * 3600;
constexpr std::string_view kSuffix = ".ended";
constexpr std::string_view kExit = "exit ";
// Limit of a cause, which is the first line of a summary.
constexpr std::size_t kMaxCauseBytes = 1024;

struct EndFile {
  std::string job_id;
  std::string path;
  bool is_old = false;
  std::int64_t written_unix_ms = 0;
};

std::vector<EndFile> end_files_in(const std::string& parent) {
  std::vector<EndFile> files;
  for (const std::string& name : names_in(parent)) {
    if (!name.ends_with(kSuffix)) continue;
    EndFile file{name.substr(0, name.size() - kSuffix.size()), parent + "/" + name};
    if (!is_job_id(file.job_id)) continue;
    struct stat status {};
    // Other users may write to the directory, so only the user's own files count.
    if (lstat(file.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != geteuid())
      continue;
    file.written_unix_ms = status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000;
    file.is_old = std::time(nullptr) - status.st_mtime > kRetentionSeconds;
    files.push_back(std::move(file));
  }
  return files;
}

std::optional<EndedJob> read_end(const EndFile& file) {
  EndedJob end;
  end.job_id = file.job_id;
  end.ended_unix_ms = file.written_unix_ms;
  std::ifstream text(file.path);
  std::string line;
  if (!std::getline(text, line) || !line.starts_with(kExit)) return std::nullopt;
  const std::optional<int> exit_code = to_number<int>(line.substr(kExit.size()));
  if (!exit_code) return std::nullopt;
  end.exit_code = *exit_code;
  std::getline(text, end.cause);
  end.description.assign(std::istreambuf_iterator<char>(text), {});
  return end;
}

}  // namespace

void record_end(const LauncherDirectory& directory, const EndedJob& end) {
  const std::string parent = directory.path.substr(0, directory.path.rfind('/'));
  for (const EndFile& file : end_files_in(parent))
    if (file.is_old) unlink(file.path.c_str());
  const std::string cause = end.cause.substr(0, std::min(end.cause.find('\n'), kMaxCauseBytes));
  write_whole(
      directory.path + std::string(kSuffix),
      std::string(kExit) + std::to_string(end.exit_code) + "\n" + cause + "\n" + end.description);
}

std::optional<EndedJob> find_ended_job(const std::string& prefix) {
  if (prefix.empty()) return std::nullopt;
  std::vector<EndedJob> by_id;
  std::vector<EndedJob> by_name;
  for (EndedJob& end : find_ended_jobs()) {
    ctl::JobDescription job;
    const bool is_named = job.ParseFromString(end.description) && job.name() == prefix;
    if (end.job_id.starts_with(prefix)) {
      by_id.push_back(std::move(end));
    } else if (is_named) {
      by_name.push_back(std::move(end));
    }
  }
  if (by_id.size() == 1) return by_id.front();
  // Several jobs may have had the same name: the newest one is returned.
  return by_id.empty() && !by_name.empty() ? std::optional(by_name.front()) : std::nullopt;
}

std::vector<EndedJob> find_ended_jobs() {
  std::vector<EndedJob> ends;
  for (const std::string& parent : job_parents())
    for (const EndFile& file : end_files_in(parent))
      if (std::optional<EndedJob> end = file.is_old ? std::nullopt : read_end(file))
        ends.push_back(*std::move(end));
  std::sort(ends.begin(), ends.end(),
            [](const EndedJob& a, const EndedJob& b) { return a.ended_unix_ms > b.ended_unix_ms; });
  return ends;
}

std::string how_it_ended(const EndedJob& end) {
  const std::string text = end.cause.empty() ? "succeeded" : end.cause;
  return text + " (exit code " + std::to_string(end.exit_code) + ")";
}

}  // namespace ivy
