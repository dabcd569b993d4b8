// SPDX-License-Identifier: Apache-2.0
#include "proto/trust/agent_config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "proto/contract/edit_distance.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/user_directories.h"

// Only this file parses TOML, and it handles errors as values.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace ivy {
namespace {

// agent.toml has five short lines; a longer file is something else.
constexpr std::size_t kMaxConfigBytes = 64 * 1024;

constexpr std::array<std::string_view, 5> kKeys{"port", "ca", "revoked", "certificate", "key"};

// Returns the key that the user probably meant, or an empty text.
std::string_view nearest_key(std::string_view typed) {
  constexpr std::size_t kLongestTyped = 32;  // Longer than any key with its mistakes.
  if (typed.size() > kLongestTyped) return {};
  const auto* const best =
      std::min_element(kKeys.begin(), kKeys.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(typed, a) < edit_distance(typed, b);
      });
  return edit_distance(typed, *best) <= 1 + best->size() / 4 ? *best : std::string_view{};
}

// Returns an error with a position in the file, in the form that editors jump to.
Error error_at(const std::string& path, const toml::source_region& source, const std::string& what,
               std::string fix) {
  return Error{Code::kInvalidArgument,
               path + ":" + std::to_string(source.begin.line) + ":" +
                   std::to_string(source.begin.column) + ": " + what,
               std::move(fix)};
}

Error unknown_key(const std::string& path, const toml::key& key) {
  const std::string_view nearest = nearest_key(key.str());
  std::string fix = "known keys: port, ca, revoked, certificate, key";
  if (!nearest.empty()) fix = "did you mean " + std::string(nearest) + "?";
  return error_at(path, key.source(), "unknown key \"" + std::string(key.str()) + "\"",
                  std::move(fix));
}

Result<std::uint16_t> port_of(const toml::node& node, const std::string& path) {
  const std::optional<std::int64_t> number = node.value_exact<std::int64_t>();
  if (!number || *number < 1 || *number > 65535) {
    return error_at(path, node.source(), "port is not a number from 1 to 65535",
                    "write it without quotes: port = " + std::to_string(kDefaultAgentPort));
  }
  return static_cast<std::uint16_t>(*number);
}

Result<std::string> file_of(const toml::node& node, const std::string& key,
                            const std::string& path) {
  const std::optional<std::string> written = node.value_exact<std::string>();
  if (!written || written->empty() || written->find('\0') != std::string::npos) {
    return error_at(path, node.source(), key + " is not the path of a file",
                    "write it in quotes: " + key + " = \"/path/of/a/file\"");
  }
  if (written->front() == '~') {
    return error_at(path, node.source(), key + ": \"~\" is not expanded",
                    "write the whole path, or one relative to this file");
  }
  const std::filesystem::path beside = std::filesystem::path(path).parent_path();
  return (beside / *written).lexically_normal().string();
}

Result<void> read_entry(const toml::key& key, const toml::node& node, const std::string& path,
                        AgentConfig& config) {
  if (key.str() == "port") {
    config.port = IVY_TRY(port_of(node, path));
    return {};
  }
  const std::string name(key.str());
  std::string* const field = name == "ca"            ? &config.ca
                             : name == "revoked"     ? &config.revoked
                             : name == "certificate" ? &config.certificate
                             : name == "key"         ? &config.key
                                                     : nullptr;
  if (field == nullptr) return unknown_key(path, key);
  *field = IVY_TRY(file_of(node, name, path));
  return {};
}

// Returns the contents of a small regular file, or nothing if it does not exist.
Result<std::optional<std::string>> read_config_file(const std::string& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return std::optional<std::string>{};
  if (!fd) return errno_error(Code::kPermissionDenied, "open " + path, errno);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error{Code::kInvalidArgument, path + " is not a file",
                 "it must be an agent.toml file: check $IVY_AGENT_CONFIG if it is set"};
  }
  std::optional<std::string> text = read_from(fd.get(), kMaxConfigBytes + 1);
  if (!text) return errno_error(Code::kUnavailable, "read " + path, errno);
  if (text->size() > kMaxConfigBytes) {
    return Error{Code::kInvalidArgument,
                 path + " is longer than 64 KiB, so it is not an agent.toml"};
  }
  return text;
}

Result<void> check_readable(const std::string& key, const std::string& file,
                            const std::string& config_path) {
  if (access(file.c_str(), R_OK) == 0) return {};
  const Code code = errno == EACCES ? Code::kPermissionDenied : Code::kFailedPrecondition;
  Error error = errno_error(code, config_path + ": " + key + ": " + file, errno);
  error.fix = "put the file there or correct " + config_path +
              "; `ivy-agent cert --user NAME` on the host with the CA creates all of them";
  return error;
}

Result<void> check_files(const AgentConfig& config, const std::string& path) {
  IVY_CHECK(check_readable("ca", config.ca, path));
  if (!config.revoked.empty()) IVY_CHECK(check_readable("revoked", config.revoked, path));
  IVY_CHECK(check_readable("certificate", config.certificate, path));
  IVY_CHECK(check_readable("key", config.key, path));
  return check_key_is_private(config.key, "ivy-agent renew --user NAME");
}

const std::string* set_variable_of(const Environment& environment, std::string_view name) {
  const std::string* const value = find_variable(environment, name);
  return value == nullptr || value->empty() ? nullptr : value;
}

}  // namespace

std::string agent_config_path(const Environment& environment) {
  if (const std::string* named = set_variable_of(environment, "IVY_AGENT_CONFIG")) return *named;
  const std::string* const config_home = set_variable_of(environment, "XDG_CONFIG_HOME");
  // The XDG specification treats a relative path as unset.
  if (config_home != nullptr && config_home->front() == '/') {
    return *config_home + "/ivyrun/agent.toml";
  }
  if (const std::string* home = set_variable_of(environment, "HOME")) {
    return *home + "/.config/ivyrun/agent.toml";
  }
  return {};
}

Result<std::optional<AgentConfig>> load_agent_config(const Environment& environment) {
  std::string path = agent_config_path(environment);
  if (path.empty()) return std::optional<AgentConfig>{};
  std::error_code ignored;  // Without a working directory, opening the relative path fails later.
  path = std::filesystem::absolute(path, ignored).string();
  const std::optional<std::string> text = IVY_TRY(read_config_file(path));
  if (!text) {
    if (set_variable_of(environment, "IVY_AGENT_CONFIG") == nullptr) {
      return std::optional<AgentConfig>{};
    }
    return Error{Code::kNotFound, "IVY_AGENT_CONFIG is set to " + path + ", which does not exist",
                 "unset IVY_AGENT_CONFIG, or make the file with `ivy-agent cert --user NAME`"};
  }
  AgentConfig config = IVY_TRY(parse_agent_config(*text, path));
  IVY_CHECK(check_files(config, path));
  return std::optional<AgentConfig>(std::move(config));
}

Result<AgentConfig> parse_agent_config(const std::string& text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path));
  if (!parsed) {
    return error_at(
        path, parsed.error().source(), std::string(parsed.error().description()),
        "write TOML, one NAME = \"VALUE\" per line; `ivy-agent cert --user NAME` on the host "
        "with the CA creates it again");
  }
  AgentConfig config;
  for (const auto& [key, node] : parsed.table()) {
    IVY_CHECK(read_entry(key, node, path, config));
  }
  for (const auto& [name, value] :
       {std::pair{"ca", &config.ca}, std::pair{"certificate", &config.certificate},
        std::pair{"key", &config.key}}) {
    if (value->empty()) {
      return Error{Code::kInvalidArgument, path + ": \"" + name + "\" is missing",
                   "add a line " + std::string(name) +
                       " = \"FILE\", or create the file again with `ivy-agent cert --user NAME`"};
    }
  }
  return config;
}

Result<void> check_key_is_private(const std::string& key_file, const std::string& renewal) {
  struct stat status {};
  if (stat(key_file.c_str(), &status) != 0) {
    return errno_error(Code::kFailedPrecondition, key_file, errno);
  }
  const mode_t others = status.st_uid == geteuid() ? 077 : 07;
  if ((status.st_mode & others) == 0) return {};
  std::array<char, 8> mode{};
  std::snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(status.st_mode & 07777));
  return Error{Code::kPermissionDenied,
               "the key " + key_file + " is open to other users of this host (mode " + mode.data() +
                   "), so it is not used",
               "chmod 600 " + key_file + "; if another user may have read it, `" + renewal +
                   "` creates a new one"};
}

std::vector<std::string> agent_socket_paths(const Environment& environment, const std::string& user,
                                            std::uint32_t uid) {
  if (const std::string* named = set_variable_of(environment, "IVY_AGENT_SOCKET")) return {*named};
  std::vector<std::string> paths;
  if (!user.empty()) paths.push_back("/run/ivyrun-" + user + "/agent.sock");
  const std::string* const runtime = set_variable_of(environment, "XDG_RUNTIME_DIR");
  const std::string own = ivyrun_runtime_directory(runtime ? runtime->c_str() : nullptr);
  if (!own.empty()) paths.push_back(own + "/agent.sock");
  paths.push_back(ivyrun_tmp_directory(uid) + "/agent.sock");
  return paths;
}

}  // namespace ivy
