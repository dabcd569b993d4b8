// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/app_table.h"

#include <algorithm>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using enum RoleHosts;

Error wrong_role(std::string_view text, const std::string& why) {
  return usage_error("\"" + std::string(text) + "\" is not a valid role: " + why,
                     "NAME=COMMAND, NAME@first=COMMAND or NAME@others=COMMAND, such as "
                     "'server@first=./server --port {server.port}'");
}

}  // namespace

int port_count(const AppSpec& app) {
  int count = 0;
  for (const AppRole& role : app.roles) count += role.ports;
  return count;
}

Result<AppRole> parse_role(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return wrong_role(text, "it has no command");
  std::string_view name = text.substr(0, equals);
  std::string_view hosts_name = "every";
  if (const std::size_t at = name.find('@'); at != std::string_view::npos) {
    hosts_name = name.substr(at + 1);
    name = name.substr(0, at);
  }
  if (!is_env_name(name)) return wrong_role(text, "a name may have only letters, digits and _");
  AppRole role;
  role.name = name;
  if (hosts_name != "first" && hosts_name != "others" && hosts_name != "every")
    return wrong_role(text, "after @, write first, others or every");
  role.hosts = hosts_name == "first" ? kFirst : hosts_name == "others" ? kOthers : kEvery;
  Result<std::vector<std::string>> command = quoted_words(text.substr(equals + 1));
  if (!command.ok()) return wrong_role(text, command.error().message);
  role.command = std::move(command).value();
  if (role.command.empty()) return wrong_role(text, "it has no command");
  const auto names_port = [&](const std::string& word) {
    return word.find("{" + role.name + ".port}") != std::string::npos;
  };
  role.ports = 1;
  if (std::any_of(role.command.begin(), role.command.end(), names_port)) role.ready = "port";
  return role;
}

AppSpec app_of_roles(std::vector<AppRole> roles) {
  AppSpec app;
  app.name = "roles";
  for (const AppRole& role : roles) {
    if (role.hosts != RoleHosts::kFirst) continue;
    std::string name = "IVY_ROLE_" + role.name;
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
      return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    app.client_environment.push_back({name, "{head}:{" + role.name + ".port}"});
  }
  for (AppRole& role : roles) role.environment = app.client_environment;
  app.roles = std::move(roles);
  return app;
}

}  // namespace ivy
