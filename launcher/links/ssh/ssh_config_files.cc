#include "launcher/links/ssh/ssh_config_files.h"

#include <glob.h>
#include <pwd.h>
#include <strings.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ivy {
namespace {

constexpr int kMaxIncludeDepth = 16;
// A configuration beyond this is not one that a person wrote.
constexpr std::size_t kMaxConfigBytes = 4u << 20;

std::vector<std::string> glob_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return files;
}

// The words behind "Include", or nothing when the line is another one.
std::vector<std::string> included_patterns(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (strcasecmp(word.c_str(), "include") != 0) return {};
  std::vector<std::string> patterns;
  while (words >> word) {
    if (word.size() >= 2 && word.front() == '"' && word.back() == '"') {
      word = word.substr(1, word.size() - 2);
    }
    patterns.push_back(word);
  }
  return patterns;
}

std::string absolute(const std::string& pattern, const std::string& directory,
                     const SshUser& user) {
  if (pattern.starts_with('/')) return pattern;
  if (pattern.starts_with("~/")) return user.home + pattern.substr(1);
  return directory + "/" + pattern;
}

SshUser current_user() {
  SshUser user;
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr) {
    user.home = entry->pw_dir;
    user.name = entry->pw_name;
  }
  return user;
}

// OpenSSH takes a missing file of the user's for an empty one, but not one that is named with -F.
Result<void> can_read(const std::string& path) {
  std::error_code ignored;
  int error = std::filesystem::is_directory(path, ignored) ? EISDIR : 0;
  if (error == 0 && access(path.c_str(), R_OK) != 0) error = errno;
  if (error == 0) return {};
  Error unreadable = errno_error(Code::kInvalidArgument,
                                 "IVY_SSH_CONFIG names " + path + ", which cannot be read", error);
  unreadable.fix = "unset IVY_SSH_CONFIG, or let it name an ssh configuration";
  return unreadable;
}

}  // namespace

std::string read_ssh_config(const std::string& path, const std::string& directory,
                            const SshUser& user, int depth) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; text.size() < kMaxConfigBytes && std::getline(file, line);) {
    const std::vector<std::string> patterns = included_patterns(line);
    if (patterns.empty()) {
      text += line + "\n";
      continue;
    }
    if (depth == kMaxIncludeDepth) continue;
    for (const std::string& pattern : patterns) {
      for (const std::string& included : glob_files(absolute(pattern, directory, user))) {
        text += std::string(kIncludeBegins) + "\n";
        text += read_ssh_config(included, directory, user, depth + 1);
        text += std::string(kIncludeEnds) + "\n";
      }
    }
  }
  return text;
}

SshConfigFiles read_ssh_config_files() {
  SshConfigFiles files;
  files.user = current_user();
  const std::string own = files.user.home + "/.ssh";
  if (const char* path = std::getenv("IVY_SSH_CONFIG"); path != nullptr && *path != '\0') {
    files.override_path = path;
    files.readable = can_read(path);
    files.texts = {read_ssh_config(path, own, files.user)};
  } else {
    files.texts = {read_ssh_config(own + "/config", own, files.user),
                   read_ssh_config("/etc/ssh/ssh_config", "/etc/ssh", files.user)};
  }
  return files;
}

}  // namespace ivy
