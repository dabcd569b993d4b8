// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/small_files.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "proto/os/files.h"
#include "proto/os/old_kernels.h"

namespace ivy {
namespace {

// Most of these files hold a number or up to a page of lines.
constexpr std::size_t kMaxBytes = 64u << 10;

std::string trimmed_line(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return std::string(text.substr(0, text.find_last_not_of(kBlanks) + 1));
}

}  // namespace

NodeState node_state(const std::string& path) {
  const int error = effective_access(path, R_OK | W_OK);
  if (error == 0) return NodeState::kUsable;
  return error == ENOENT ? NodeState::kAbsent : NodeState::kForbidden;
}

std::string small_file(const std::string& path) { return read_file(path, kMaxBytes).value_or(""); }

std::string first_line(const std::string& path) {
  const std::string text = small_file(path);
  return trimmed_line(std::string_view(text).substr(0, text.find('\n')));
}

int number_in(const std::string& path, int otherwise) {
  const std::string line = first_line(path);
  int number = otherwise;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  return error == std::errc() ? number : otherwise;
}

std::string value_after(const std::string& text, const std::string& name) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    // The form "NAME: value", with blanks before the colon.
    const std::size_t colon = rest.find_first_not_of(" \t");
    if (colon != std::string_view::npos && rest[colon] == ':')
      return trimmed_line(rest.substr(colon + 1));
    if (!rest.empty() && (rest.front() == ' ' || rest.front() == '\t')) return trimmed_line(rest);
  }
  return {};
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) != nullptr ? buffer : "";
}

bool is_all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

int number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  text.remove_prefix(prefix.size());
  int number = -1;
  if (is_all_digits(text)) std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string device_root() {
  const char* root = secure_getenv("IVY_DEVICE_ROOT");
  return root != nullptr ? root : "";
}

}  // namespace ivy
