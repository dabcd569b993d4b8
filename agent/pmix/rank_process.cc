// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/rank_process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// The kernel limits both together to a quarter of the stack limit.
constexpr std::size_t kMaxBytes = 4u << 20;

std::vector<std::string> texts_of(const std::string& path) {
  const std::string bytes = read_file(path, kMaxBytes).value_or("");
  std::vector<std::string> texts;
  std::string_view rest = bytes;
  while (!rest.empty()) texts.emplace_back(take_part(rest, '\0'));
  return texts;
}

// "7f…-7f… r-xp 00000000 fe:00 1234   /usr/lib/libpmix.so.2.5.2" -> "/usr/lib/libpmix.so.2.5.2"
std::string mapped_pmix(const std::string& path) {
  const std::string maps = read_file(path, kMaxBytes).value_or("");
  std::string_view rest = maps;
  while (!rest.empty()) {
    const std::string_view line = take_part(rest, '\n');
    const std::size_t begin = line.find('/');
    if (begin != std::string_view::npos && line.find("/libpmix.so.2") != std::string_view::npos)
      return std::string(line.substr(begin));
  }
  return {};
}

bool holds_socket(const std::string& directory, const std::string& wanted) {
  const std::vector<std::string> names = names_in(directory + "/fd");
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::error_code ignored;
    return std::filesystem::read_symlink(directory + "/fd/" + name, ignored) == wanted;
  });
}

}  // namespace

std::string RankProcess::variable(std::string_view name) const {
  for (const std::string& entry : environment)
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  return {};
}

RankProcess read_rank_process(pid_t pid) {
  const std::string directory = "/proc/" + std::to_string(pid);
  return {texts_of(directory + "/environ"), texts_of(directory + "/cmdline"),
          mapped_pmix(directory + "/maps")};
}

gid_t group_of_process(pid_t pid) {
  struct stat status {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &status) != 0) return getegid();
  return status.st_gid;
}

pid_t process_with_socket(std::uint32_t inode) {
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  for (const std::string& name : names_in("/proc")) {
    const auto pid = to_number<pid_t>(name);
    if (pid && holds_socket("/proc/" + name, wanted)) return *pid;
  }
  return 0;
}

}  // namespace ivy
