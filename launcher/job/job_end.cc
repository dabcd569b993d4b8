#include "launcher/job/job_end.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/user_places.h"

namespace ivy {
namespace {

constexpr std::time_t kRememberedSeconds = 24 * 3600;
constexpr std::string_view kSuffix = ".ended";
constexpr std::string_view kExit = "exit ";
// A cause is the first line of a summary; more is cut.
constexpr std::size_t kMaxCauseBytes = 1024;

struct EndFile {
  std::string job_id;
  std::string path;
  bool is_old = false;
};

std::vector<EndFile> end_files_in(const std::string& parent) {
  std::vector<EndFile> files;
  for (const std::string& name : names_in(parent)) {
    if (!name.ends_with(kSuffix)) continue;
    EndFile file{name.substr(0, name.size() - kSuffix.size()), parent + "/" + name, false};
    if (!is_job_id(file.job_id)) continue;
    struct stat status {};
    // Only our own files count, even if others may write to the directory.
    if (lstat(file.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != geteuid())
      continue;
    file.is_old = std::time(nullptr) - status.st_mtime > kRememberedSeconds;
    files.push_back(std::move(file));
  }
  return files;
}

std::optional<EndedJob> read_end(const EndFile& file) {
  EndedJob end;
  end.job_id = file.job_id;
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

void remember_end(const JobPlace& place, const EndedJob& end) {
  const std::string parent = place.path.substr(0, place.path.rfind('/'));
  for (const EndFile& file : end_files_in(parent))
    if (file.is_old) unlink(file.path.c_str());
  const std::string cause = end.cause.substr(0, std::min(end.cause.find('\n'), kMaxCauseBytes));
  write_whole(
      place.path + std::string(kSuffix),
      std::string(kExit) + std::to_string(end.exit_code) + "\n" + cause + "\n" + end.description);
}

std::optional<EndedJob> find_ended_job(const std::string& prefix) {
  if (prefix.empty()) return std::nullopt;
  std::vector<EndFile> matching;
  for (const std::string& parent : job_parents(geteuid(), std::getenv("XDG_RUNTIME_DIR")))
    for (EndFile& file : end_files_in(parent))
      if (!file.is_old && file.job_id.starts_with(prefix)) matching.push_back(std::move(file));
  return matching.size() == 1 ? read_end(matching.front()) : std::nullopt;
}

std::string how_it_ended(const EndedJob& end) {
  const std::string text = end.cause.empty() ? "every rank ended well" : end.cause;
  return text + " (exit code " + std::to_string(end.exit_code) + ")";
}

}  // namespace ivy
