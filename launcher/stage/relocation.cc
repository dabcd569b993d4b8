// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/relocation.h"

#include <algorithm>
#include <cstring>

#include "proto/contract/text.h"

namespace ivy {
namespace {

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Returns the command for /bin/sh that runs the interpreter `name` next to the script. The quotes
// make the lines a string for Python and a command for the shell.
std::string shell_head(std::string_view name, std::string_view arguments) {
  std::string head = "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'";
  head.append(name).append("' ");
  if (!arguments.empty()) head.append(arguments).append(" ");
  return head + "\"$0\" \"$@\"\n' '''\n";
}

// Splits "/prefix/bin/python3 -I" into "python3" and "-I"; nothing for interpreters elsewhere.
std::optional<std::pair<std::string_view, std::string_view>> own_interpreter(
    std::string_view command, const std::string& prefix) {
  const std::string bin = prefix + "/bin/";
  const bool is_quoted = command.starts_with('"');
  if (is_quoted) command.remove_prefix(1);
  if (!command.starts_with(bin)) return std::nullopt;
  command.remove_prefix(bin.size());
  const std::size_t end = std::min(command.find(is_quoted ? '"' : ' '), command.size());
  const std::string_view name = command.substr(0, end);
  if (name.empty() || name.find_first_of("/'") != std::string_view::npos) return std::nullopt;
  std::string_view rest = command.substr(end);
  if (is_quoted && !rest.empty()) rest.remove_prefix(1);
  return std::pair{name, without_blanks(rest)};
}

// Files a path under imports or outside. `inside` may be "." for the project itself.
void refer_to(std::string_view path, const StagedDirectories& directories, References& found) {
  const std::optional<std::string> inside = path_inside(path, directories.project);
  std::vector<std::string>& list = inside ? found.imports : found.outside;
  const std::string entry = inside ? *inside : std::string(path);
  if (std::find(list.begin(), list.end(), entry) == list.end()) list.push_back(entry);
}

// Returns the path from one directory of the environment to another: "../../../share".
std::string path_between(const std::string& from, const std::string& to) {
  std::string path;
  for (std::size_t i = 0; !from.empty() && from != "." && i < parts_of(from, '/').size(); ++i)
    path += "../";
  return path + to;
}

// Reads the Python string at the front of `text`, and moves past it. Understands the escapes that
// repr() writes for a quote and a backslash; other strings are rejected.
std::optional<std::string> take_string(std::string_view& text) {
  if (text.empty() || (text.front() != '\'' && text.front() != '"')) return std::nullopt;
  const char quote = text.front();
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      text.remove_prefix(i + 1);
      return value;
    }
    if (text[i] == '\\') {
      ++i;
      if (i >= text.size() || std::strchr("'\"\\", text[i]) == nullptr) return std::nullopt;
    }
    value += text[i];
  }
  return std::nullopt;
}

void skip_separators(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n,"), text.size()));
}

// Parses a dictionary of strings: "{'pkg': '/home/me/pkg'}".
std::optional<std::vector<std::pair<std::string, std::string>>> parse_table(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> table;
  if (!text.starts_with('{')) return std::nullopt;
  text.remove_prefix(1);
  for (skip_separators(text); !text.starts_with('}'); skip_separators(text)) {
    const std::optional<std::string> key = take_string(text);
    skip_separators(text);
    if (!key || !text.starts_with(':')) return std::nullopt;
    text.remove_prefix(1);
    skip_separators(text);
    const std::optional<std::string> value = take_string(text);
    if (!value) return std::nullopt;
    table.emplace_back(*key, *value);
  }
  return table;
}

// Returns the directory from which `import NAME` finds this package or module: "/src" for "a.b" and
// "/src/a/b". Empty if the file has another name.
std::string import_root(const std::string& name, std::string_view path) {
  if (path.ends_with(".py")) path.remove_suffix(3);
  std::string tail = "/" + name;
  std::replace(tail.begin(), tail.end(), '.', '/');
  if (!path.ends_with(tail)) return {};
  return std::string(path.substr(0, path.size() - tail.size()));
}

}  // namespace

VenvConfig parse_venv_config(std::string_view text) {
  VenvConfig config;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string key = lower_case(without_blanks(line.substr(0, equals)));
    const std::string_view value = without_blanks(line.substr(equals + 1));
    if (key == "home") config.home = value;
    if (key == "version" || key == "version_info") {
      std::string_view digits = value.substr(0, value.find_first_not_of("0123456789."));
      while (digits.ends_with('.')) digits.remove_suffix(1);
      config.version = digits;
    }
    if (key == "include-system-site-packages")
      config.has_system_packages = lower_case(value) == "true";
    if (key == "uv") config.is_by_uv = true;
  }
  return config;
}

std::string short_version(std::string_view version) {
  const std::size_t dot = version.find('.');
  if (dot == std::string_view::npos) return std::string(version);
  return std::string(version.substr(0, version.find('.', dot + 1)));
}

std::optional<NewHead> relocatable_script(std::string_view begin, const std::string& prefix) {
  if (!begin.starts_with("#!")) return std::nullopt;
  const std::size_t end = begin.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view command = without_blanks(begin.substr(2, end - 2));
  if (const auto own = own_interpreter(command, prefix))
    return NewHead{shell_head(own->first, own->second), end + 1};
  constexpr std::string_view kExec = "'''exec' ";
  constexpr std::string_view kTail = "\"$0\" \"$@\"";
  constexpr std::string_view kEnd = "' '''\n";
  const std::string_view rest = begin.substr(end + 1);
  if (command != "/bin/sh" || !rest.starts_with(kExec)) return std::nullopt;
  const std::size_t line = rest.find('\n');
  if (line == std::string_view::npos || !rest.substr(line + 1).starts_with(kEnd))
    return std::nullopt;
  std::string_view run = without_blanks(rest.substr(kExec.size(), line - kExec.size()));
  if (!run.ends_with(kTail)) return std::nullopt;
  run = without_blanks(run.substr(0, run.size() - kTail.size()));
  const auto own = own_interpreter(run, prefix);
  if (!own) return std::nullopt;
  return NewHead{shell_head(own->first, own->second), end + 1 + line + 1 + kEnd.size()};
}

References relocate_pth(std::string_view text, const StagedDirectories& directories) {
  References found;
  const std::string site = path_inside(directories.site, directories.prefix).value_or(".");
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    const std::string_view path = without_blanks(line);
    const bool is_path = path.starts_with('/');
    if (is_path) {
      if (const auto own = path_inside(path, directories.prefix)) {
        found.text += path_between(site, *own) + "\n";
        continue;
      }
      if (!directories.project.empty()) {
        refer_to(path, directories, found);
        continue;
      }
    }
    if (!path.empty()) found.text.append(line).append("\n");
  }
  return found;
}

std::optional<References> relocate_editable_finder(std::string_view text,
                                                   const StagedDirectories& directories) {
  std::size_t at = text.find("\nMAPPING");
  if (at == std::string_view::npos) return std::nullopt;
  at = text.find('=', at);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = text.substr(at + 1);
  skip_separators(rest);
  const auto table = parse_table(rest);
  if (!table) return std::nullopt;
  References found;
  for (const auto& [name, path] : *table) {
    const std::string root = import_root(name, path);
    if (root.empty() || !path_inside(path, directories.project)) {
      found.outside.push_back(path);
    } else {
      refer_to(root, directories, found);
    }
  }
  return found;
}

std::optional<std::string> path_inside(std::string_view path, std::string_view directory) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (directory.empty() || !path.starts_with(directory)) return std::nullopt;
  if (path.size() == directory.size()) return ".";
  if (path[directory.size()] != '/') return std::nullopt;
  return std::string(path.substr(directory.size() + 1));
}

}  // namespace ivy
