// SPDX-License-Identifier: Apache-2.0
// find_app() finds the file by name or path, parse_app() converts it: Reader reads the keys of one
// TOML table and keeps the first error, role_of() reads one role of the app.
#include "launcher/options/app_file.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/options/config_files.h"
#include "launcher/options/option_values.h"
#include "launcher/options/toml_file.h"
#include "proto/contract/text.h"
#include "proto/os/own_program.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace ivy {
namespace {

using Words = std::vector<std::string>;

// A role that needs more ports should be split into several roles.
constexpr std::int64_t kMaxPortsOfRole = 64;
constexpr std::size_t kMaxRoles = 32;

// Reads the keys of one table. Keeps the first error.
class Reader {
 public:
  Reader(const toml::table& table, const std::string& path) : table_(table), path_(path) {}

  std::string text(std::string_view key) {
    const toml::node* node = find(key);
    if (node == nullptr) return "";
    const auto value = node->value_exact<std::string>();
    if (!value) fail(*node, std::string(key) + " is not a string");
    return value.value_or("");
  }
  // Returns the index of the chosen word; the first word is the default.
  std::size_t choice(std::string_view key, std::initializer_list<std::string_view> words) {
    const std::string chosen = text(key);
    if (chosen.empty()) return 0;
    const auto at = std::find(words.begin(), words.end(), chosen);
    if (at == words.end())
      fail(*find(key), std::string(key) + " is \"" + chosen + "\", which is not one of " +
                           joined(std::vector<std::string_view>(words), ", "));
    return at == words.end() ? 0 : static_cast<std::size_t>(at - words.begin());
  }
  bool is_on(std::string_view key) {
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_boolean())
      fail(*node, std::string(key) + " must be true or false");
    return node != nullptr && node->value_or(false);
  }
  int number(std::string_view key, std::int64_t max_value) {
    const toml::node* node = find(key);
    if (node == nullptr) return 0;
    const std::int64_t value = node->value_exact<std::int64_t>().value_or(-1);
    if (value < 0 || value > max_value)
      fail(*node, std::string(key) + " must be a number from 0 to " + std::to_string(max_value));
    return static_cast<int>(value);
  }
  Words words(std::string_view key) {
    Words all;
    const toml::node* node = find(key);
    if (node == nullptr) return all;
    const toml::array* list = node->as_array();
    if (list == nullptr) fail(*node, std::string(key) + " must be a list of strings");
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const auto word = (*list)[i].value_exact<std::string>();
      if (!word) fail((*list)[i], std::string(key) + " must be a list of strings");
      all.push_back(word.value_or(""));
    }
    return all;
  }
  Environment variables(std::string_view key) {
    Environment all;
    const toml::node* node = find(key);
    if (node == nullptr) return all;
    const toml::table* table = node->as_table();
    if (table == nullptr) {
      fail(*node, std::string(key) + " must be a table of variables");
      return all;
    }
    for (const auto& [name, value] : *table) {
      const auto text = value.value_exact<std::string>();
      if (!text || !is_env_name(name.str()))
        fail(value, "a variable must have the form NAME = \"VALUE\"");
      all.push_back({std::string(name.str()), text.value_or("")});
    }
    return all;
  }
  const toml::node* find(std::string_view key) {
    known_.emplace(key);
    return table_.get(key);
  }
  void fail(const toml::node& node, std::string what) {
    if (error_) return;
    error_ = Error{Code::kInvalidArgument,
                   path_ + ":" + std::to_string(node.source().begin.line) + ": " + std::move(what),
                   "see docs/apps.md for the format of app files"};
  }
  // Returns the first error, including unknown keys.
  std::optional<Error> error() {
    for (const auto& [key, node] : table_)
      if (!known_.contains(key.str()))
        fail(node, "unknown key \"" + std::string(key.str()) + "\"; known keys: " +
                       joined(std::vector<std::string>(known_.begin(), known_.end()), ", "));
    return error_;
  }

 private:
  const toml::table& table_;
  const std::string& path_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

Result<AppRole> role_of(const toml::table& table, const std::string& path) {
  Reader reader(table, path);
  AppRole role;
  role.name = reader.text("name");
  constexpr RoleHosts kRoleHosts[] = {RoleHosts::kEvery, RoleHosts::kFirst, RoleHosts::kOthers};
  role.hosts = kRoleHosts[reader.choice("on", {"every", "first", "others"})];
  role.command = reader.words("command");
  role.ports = reader.number("ports", kMaxPortsOfRole);
  role.ready = reader.text("ready");
  role.environment = reader.variables("environment");
  role.may_end = reader.is_on("may-end");
  if (!is_env_name(role.name))
    reader.fail(table, "a role needs a name that consists of letters, digits and _");
  if (role.command.empty()) reader.fail(table, "role " + role.name + " has no command");
  if (!role.ready.empty() && (role.ports == 0 || (role.ready != "port" && role.ready[0] != '/')))
    reader.fail(table, "ready of role " + role.name +
                           " must be \"port\" or a path such as \"/health\", and needs ports = 1");
  if (std::optional<Error> error = reader.error()) return *std::move(error);
  return role;
}

bool is_path(const std::string& wanted) {
  return wanted.find('/') != std::string::npos || wanted.ends_with(".toml");
}

std::string known_apps(const std::vector<std::string>& directories) {
  std::set<std::string> names = {"jax-service"};
  for (const std::string& directory : directories) {
    std::error_code ignored;
    for (std::filesystem::directory_iterator at(directory, ignored), end; at != end;
         at.increment(ignored))
      if (at->path().extension() == ".toml") names.insert(at->path().stem());
  }
  return joined(std::vector<std::string>(names.begin(), names.end()), ", ");
}

}  // namespace

std::vector<std::string> app_directories(const Environment& environment) {
  std::vector<std::string> directories;
  const ConfigPaths paths = config_paths(environment);
  for (const std::string& file : {paths.user, paths.system})
    if (!file.empty()) directories.push_back(file.substr(0, file.rfind('/')) + "/apps");
  directories.push_back(program_directory() + "/../share/ivyrun/apps");
  return directories;
}

Result<AppSpec> parse_app(const std::string& text, const std::string& path, std::string name) {
  const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path));
  if (!parsed)
    return Error{Code::kInvalidArgument,
                 path + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
                     std::string(parsed.error().description()),
                 "see docs/apps.md for the format of app files"};
  const toml::table& table = parsed.table();
  Reader reader(table, path);
  AppSpec app;
  app.name = std::move(name);
  constexpr AppClient kClients[] = {AppClient::kFirst, AppClient::kEvery, AppClient::kNone};
  app.client = kClients[reader.choice("client", {"once", "every-rank", "none"})];
  app.client_environment = reader.variables("client-environment");
  app.ready_command = reader.words("ready-command");
  app.serves_arguments = reader.is_on("serves-arguments");
  const toml::node* found = reader.find("role");
  const toml::array* roles = found == nullptr ? nullptr : found->as_array();
  if (roles == nullptr || roles->empty() || roles->size() > kMaxRoles ||
      !roles->is_homogeneous(toml::node_type::table))
    reader.fail(table, "an app needs 1 to 32 roles: [[role]]");
  if (std::optional<Error> error = reader.error()) return *std::move(error);
  for (const toml::node& role : *roles)
    app.roles.push_back(IVY_TRY(role_of(*role.as_table(), path)));
  return app;
}

Result<AppSpec> find_app(const std::string& wanted, const std::vector<std::string>& directories) {
  const std::string name = std::filesystem::path(wanted).stem();
  std::vector<std::string> paths = {wanted};
  if (!is_path(wanted)) {
    paths.clear();
    for (const std::string& directory : directories)
      paths.push_back(directory + "/" + wanted + ".toml");
  }
  for (const std::string& path : paths) {
    const std::optional<std::string> text = IVY_TRY(read_settings_file(path, FileOwner::kAny));
    if (text) return parse_app(*text, path, name);
  }
  if (is_path(wanted)) return usage_error(wanted + " does not exist");
  return usage_error("\"" + wanted + "\" is not one of " + known_apps(directories),
                     "or a file: --app ./" + wanted + ".toml");
}

}  // namespace ivy
