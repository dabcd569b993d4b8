// SPDX-License-Identifier: Apache-2.0
// prepare_environment() at the end calls the steps in the order of the file.
#include "agent/node/facts/staged_python.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

// The descriptions of conda environments are the longest: about 60 bytes for each of 3,000 files.
constexpr std::size_t kMaxDescriptionBytes = 16u << 20;
// Longer than any library that contains a path.
constexpr std::size_t kMaxReplacedBytes = 512u << 20;
// Written last. Its text is the directory of the Python to which the environment is linked.
constexpr const char* kReadyMark = "/.ivyrun-ready";

std::string short_version(const std::string& version) {
  const std::size_t dot = version.find('.');
  return version.substr(0, dot == std::string::npos ? dot : version.find('.', dot + 1));
}

bool is_native_program(const std::string& path) {
  return access(path.c_str(), X_OK) == 0 && read_file(path, 4).value_or("") ==
                                                "\x7f"
                                                "ELF";
}

bool is_environment(const std::string& bin) {
  return access((bin.substr(0, bin.rfind('/')) + "/pyvenv.cfg").c_str(), F_OK) == 0;
}

// Returns directories that may contain interpreters, in the order in which they are searched.
std::vector<std::string> python_directories(const std::string& version,
                                            const std::string& preferred,
                                            const PythonSearch& search) {
  std::vector<std::string> all;
  if (!preferred.empty()) all.push_back(preferred);
  for (const std::string_view directory : parts_of(search.search_path, ':'))
    if (directory.starts_with('/')) all.emplace_back(directory);
  all.insert(all.end(), {"/usr/bin", "/usr/local/bin"});
  if (search.home.empty()) return all;
  for (const char* installed : {"/.local/share/uv/python", "/.pyenv/versions"}) {
    const std::string parent = search.home + installed;
    for (const std::string& name : names_in(parent))
      if (name.find(version) != std::string::npos) all.push_back(parent + "/" + name + "/bin");
  }
  return all;
}

// Returns "python3.11 in /usr/bin" for the Pythons that exist; for the message that none fits.
std::string present_pythons(const PythonSearch& search) {
  std::string text;
  std::vector<std::string> seen;
  for (const std::string& directory : python_directories("", "", search)) {
    if (std::ranges::find(seen, directory) != seen.end() || is_environment(directory)) continue;
    seen.push_back(directory);
    for (const std::string& name : names_in(directory)) {
      constexpr std::string_view kName = "python3.";
      const bool is_version =
          name.starts_with(kName) && name.size() > kName.size() &&
          name.find_first_not_of("0123456789", kName.size()) == std::string::npos;
      if (is_version && is_native_program(directory + "/" + name))
        add_item(text, name + " in " + directory);
    }
  }
  return text.empty() ? "no Python was found" : "found only " + text;
}

// Replaces a file atomically and keeps its mode. Several processes may do this concurrently.
Result<void> replace_file(const std::string& path, std::string_view bytes) {
  struct stat info {};
  const mode_t mode = stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0644;
  const std::string fresh = path + "." + std::to_string(getpid());
  if (overwrite(fresh, bytes) && chmod(fresh.c_str(), mode) == 0 &&
      rename(fresh.c_str(), path.c_str()) == 0)
    return {};
  const Error error = errno_error(Code::kResourceExhausted, path, errno);
  unlink(fresh.c_str());
  return error;
}

Result<void> replace_link(const std::string& path, const std::string& target) {
  const std::string fresh = path + "." + std::to_string(getpid());
  if (symlink(target.c_str(), fresh.c_str()) == 0 && rename(fresh.c_str(), path.c_str()) == 0)
    return {};
  const Error error = errno_error(Code::kResourceExhausted, path, errno);
  unlink(fresh.c_str());
  return error;
}

Result<StagedPython> read_description(const std::string& directory) {
  const std::string path = directory + "/" + std::string(stage::kEnvironmentDescription);
  const std::optional<std::string> bytes = read_file(path, kMaxDescriptionBytes);
  if (!bytes) return errno_error(Code::kNotFound, path, errno);
  StagedPython description;
  if (!description.ParseFromString(*bytes))
    return Error{Code::kFailedPrecondition, path + " is damaged", "remove " + directory};
  return description;
}

Result<void> check_architecture(const StagedPython& description) {
  utsname system{};
  uname(&system);
  if (description.architecture().empty() || description.architecture() == system.machine) return {};
  return Error{Code::kFailedPrecondition,
               "the environment has files compiled for " + description.architecture() +
                   ", but this host is " + system.machine + ": " + description.compiled_file(),
               "create the environment on the hosts from a lock file: --stage-venv=uv\n"
               "or leave this host out"};
}

// Returns the directory of this host's Python for the environment.
Result<std::string> choose_base(const StagedPython& description, const PythonSearch& search) {
  const std::string version = short_version(description.version());
  const std::string base = find_base_python(version, description.home(), search);
  if (!base.empty()) return base;
  return Error{Code::kFailedPrecondition,
               "the environment needs Python " + version + " (" + description.prefix() +
                   "/pyvenv.cfg), which this host does not have; " + present_pythons(search),
               "install it there: uv python install " + version +
                   "\nor create the environment with a Python that can be sent along: uv venv "
                   "--managed-python --python " +
                   version};
}

Result<void> replace_prefixes(const std::string& directory, const StagedPython& description) {
  const auto replace = [&](const std::string& path, auto change) -> Result<void> {
    std::optional<std::string> bytes = read_file(directory + "/" + path, kMaxReplacedBytes);
    if (!bytes || bytes->find(description.prefix()) == std::string::npos) return {};
    IVY_CHECK(change(*bytes));
    return replace_file(directory + "/" + path, *bytes);
  };
  for (const std::string& path : description.texts())
    IVY_CHECK(replace(path, [&](std::string& bytes) -> Result<void> {
      bytes = with_text_prefix(std::move(bytes), description.prefix(), directory);
      return {};
    }));
  for (const StagedPython::Binary& binary : description.binaries())
    IVY_CHECK(replace(binary.path(), [&](std::string& bytes) -> Result<void> {
      if (replace_binary_prefix(bytes, description.prefix(), directory,
                                binary.placeholder_length()))
        return {};
      return Error{Code::kFailedPrecondition,
                   binary.path() + " has no room for the path " + directory,
                   "use a shorter directory: --stage-to DIR"};
    }));
  return {};
}

// Writes what `python3 -m venv` would write for this Python.
Result<void> link_to_base(const std::string& directory, const StagedPython& description,
                          const std::string& base) {
  const std::string version = short_version(description.version());
  const std::string bin = directory + "/bin";
  if (mkdir(bin.c_str(), 0755) != 0 && errno != EEXIST)
    return errno_error(Code::kResourceExhausted, bin, errno);
  IVY_CHECK(replace_link(bin + "/python", base + "/python" + version));
  IVY_CHECK(replace_link(bin + "/python3", "python"));
  IVY_CHECK(replace_link(bin + "/python" + version, "python"));
  return replace_file(directory + "/pyvenv.cfg",
                      "home = " + base + "\ninclude-system-site-packages = " +
                          (description.has_system_packages() ? "true" : "false") +
                          "\nversion = " + description.version() + "\n");
}

}  // namespace

std::string with_text_prefix(std::string text, std::string_view from, std::string_view to) {
  if (from.empty()) return text;
  std::string changed;
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    changed.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return begin == 0 ? text : changed.append(text, begin);
}

bool replace_binary_prefix(std::string& bytes, std::string_view from, std::string_view to,
                           std::size_t placeholder_length) {
  if (to.size() > placeholder_length || from.empty()) return false;
  std::string changed = bytes;
  for (std::size_t at = changed.find(from); at != std::string::npos;) {
    const std::size_t end = std::min(changed.find('\0', at), changed.size());
    const std::string old = changed.substr(at, end - at);
    std::string fresh = with_text_prefix(old, from, to);
    // The string must stay terminated within the NULs that pad it.
    const std::size_t padded = std::min(changed.find_first_not_of('\0', end), changed.size());
    if (fresh.size() > old.size() && at + fresh.size() >= padded) return false;
    const std::size_t length = std::max(fresh.size(), old.size());
    fresh.resize(length, '\0');
    changed.replace(at, length, fresh);
    at = changed.find(from, at + length);
  }
  bytes = std::move(changed);
  return true;
}

std::string find_base_python(const std::string& version, const std::string& preferred,
                             const PythonSearch& search) {
  for (const std::string& directory : python_directories(version, preferred, search))
    if (!is_environment(directory) && is_native_program(directory + "/python" + version))
      return directory;
  return {};
}

Result<void> check_requirements(const StagedPython& requirements, bool has_python,
                                const PythonSearch& search) {
  IVY_CHECK(check_architecture(requirements));
  if (has_python || requirements.is_conda()) return {};
  const Result<std::string> base = choose_base(requirements, search);
  return base.ok() ? Result<void>() : base.error();
}

Result<void> prepare_environment(const std::string& directory, const std::string& python,
                                 const PythonSearch& search) {
  const StagedPython description = IVY_TRY(read_description(directory));
  std::string base;
  if (!python.empty())
    base = python + "/bin";
  else if (!description.is_conda())
    base = IVY_TRY(choose_base(description, search));
  const std::string ready = base + "\n" + directory;
  if (read_file(directory + kReadyMark, PATH_MAX * 2).value_or("") == ready) return {};
  IVY_CHECK(replace_prefixes(directory, description));
  if (!description.is_conda()) IVY_CHECK(link_to_base(directory, description, base));
  return replace_file(directory + kReadyMark, ready);
}

}  // namespace ivy
