// SPDX-License-Identifier: Apache-2.0
#include "launcher/fetch/fetch_names.h"

#include <climits>

#include "proto/contract/text.h"

namespace ivy {

Result<void> check_fetched_path(std::string_view path) {
  const auto invalid = [](const char* why) { return Error{Code::kInvalidArgument, why}; };
  // Room for the directory into which it goes.
  if (path.empty() || path.size() >= PATH_MAX / 2) return invalid("its length");
  if (path.find('\0') != std::string_view::npos) return invalid("a zero byte");
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty()) return invalid("an empty part");
    if (part == "." || part == "..") return invalid("a part that is \".\" or \"..\"");
    if (part.size() > NAME_MAX) return invalid("a part that is too long");
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
}

std::string fetched_host_name(std::string_view host) {
  std::string name(host.substr(0, NAME_MAX));
  for (char& byte : name)
    if (byte == '/' || byte == '\0') byte = '_';
  return name.empty() || name == "." || name == ".." ? "_" + name : name;
}

std::string fetched_rank_name(int rank) {
  return "rank" + zero_padded(static_cast<std::uint64_t>(rank), 5);
}

std::string numbered_directory(const std::string& directory, int number) {
  return number <= 1 ? directory : directory + "." + std::to_string(number);
}

}  // namespace ivy
