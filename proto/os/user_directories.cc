// SPDX-License-Identifier: Apache-2.0
#include "proto/os/user_directories.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr char kStopGraceFile[] = "/stop-grace-ms";
constexpr char kStopMark[] = "/stop";
// 340 lines is the kernel's limit.
constexpr std::size_t kMaxUidMap = 16u << 10;

}  // namespace

bool is_job_id(std::string_view text) {
  return text.size() == kJobIdDigits && is_hexadecimal(text);
}

std::string ivyrun_tmp_directory(std::uint32_t uid) { return "/tmp/ivyrun-" + std::to_string(uid); }

std::string ivyrun_runtime_directory(const char* xdg_runtime_dir) {
  if (xdg_runtime_dir == nullptr || xdg_runtime_dir[0] != '/') return {};
  return std::string(xdg_runtime_dir) + "/ivyrun";
}

std::vector<std::string> job_parents(std::uint32_t uid, std::uint32_t uid_outside,
                                     const char* xdg_runtime_dir) {
  std::vector<std::string> directories{ivyrun_tmp_directory(uid),
                                       "/dev/shm/ivyrun-" + std::to_string(uid)};
  std::string runtime = ivyrun_runtime_directory(xdg_runtime_dir);
  if (!runtime.empty()) directories.push_back(std::move(runtime));
  if (uid_outside != uid)
    directories.push_back(ivyrun_tmp_directory(uid) + "-of-" + std::to_string(uid_outside));
  return directories;
}

std::vector<std::string> job_parents() {
  const std::uint32_t uid = geteuid();
  const std::string map = read_file("/proc/self/uid_map", kMaxUidMap).value_or("");
  return job_parents(uid, uid_outside(uid, map), std::getenv("XDG_RUNTIME_DIR"));
}

std::uint32_t uid_outside(std::uint32_t uid, std::string_view uid_map) {
  while (!uid_map.empty()) {
    const std::vector<std::string_view> words = words_of(take_part(uid_map, '\n'));
    if (words.size() != 3) break;
    std::array<std::uint32_t, 3> range{};  // First uid inside, first uid outside, and length.
    for (std::size_t i = 0; i < range.size(); ++i)
      if (!read_number(words[i], range[i])) return uid;
    const auto [inside, outside, count] = range;
    if (uid >= inside && uid - inside < count) return outside + (uid - inside);
  }
  return uid;
}

bool write_stop_grace(const std::string& job_directory, std::chrono::milliseconds grace) {
  return write_whole(job_directory + kStopGraceFile, std::to_string(grace.count()));
}

std::optional<std::chrono::milliseconds> read_stop_grace(const std::string& job_directory) {
  const std::optional<std::string> text =
      read_file(job_directory + kStopGraceFile, 32, O_NOFOLLOW | O_NONBLOCK);
  std::uint32_t grace_ms = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), grace_ms).ec != std::errc())
    return std::nullopt;
  return std::chrono::milliseconds(grace_ms);
}

bool change_stop_grace(const std::string& job_directory, std::chrono::milliseconds grace) {
  return read_stop_grace(job_directory) && write_stop_grace(job_directory, grace);
}

void mark_stop(const std::string& job_directory) {
  (void)write_whole(job_directory + kStopMark, "");
}

bool is_stop_marked(const std::string& job_directory) {
  return access((job_directory + kStopMark).c_str(), F_OK) == 0;
}

}  // namespace ivy
