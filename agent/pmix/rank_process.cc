#include "agent/pmix/rank_process.h"

#include <cstddef>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// The kernel's own limit for both together is a quarter of the stack's.
constexpr std::size_t kMostBytes = 4u << 20;

std::vector<std::string> texts_of(const std::string& path) {
  const std::string bytes = read_file(path, kMostBytes).value_or("");
  std::vector<std::string> texts;
  std::string_view rest = bytes;
  while (!rest.empty()) texts.emplace_back(take_part(rest, '\0'));
  return texts;
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
  return {texts_of(directory + "/environ"), texts_of(directory + "/cmdline")};
}

}  // namespace ivy
