// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/interpreter.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "proto/contract/env.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"

namespace ivy {
namespace {

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::vector<std::string> all_in_path(const std::string& name, const Environment& caller) {
  const std::string* path = find_variable(caller, "PATH");
  std::string_view rest = kDefaultSearchPath;
  if (path != nullptr) rest = *path;
  std::vector<std::string> all;
  while (!rest.empty()) {
    std::string candidate = std::string(take_part(rest, ':')) + "/" + name;
    if (candidate.starts_with('/') && is_program(candidate)) all.push_back(std::move(candidate));
  }
  return all;
}

// Returns true for the virtual environment into which only ivyrun was installed. Its activation is
// meant for ivyrun and does not select the program's Python.
bool is_ivyruns_only(const std::string& bin, const std::string& own_directory) {
  if (bin != own_directory) return false;
  const std::string prefix = bin.substr(0, bin.rfind('/'));
  if (access((prefix + "/pyvenv.cfg").c_str(), R_OK) != 0) return false;
  for (const std::string& python : names_in(prefix + "/lib")) {
    for (const std::string& name : names_in(prefix + "/lib/" + python + "/site-packages")) {
      constexpr std::string_view kIvyrunNames[] = {
          "ivyrun",          "ivycomm",     "pip",
          "setuptools",      "wheel",       "pkg_resources",
          "_distutils_hack", "__pycache__", "distutils-precedence.pth"};
      const auto is_ivyruns = [&](std::string_view own) { return name.starts_with(own); };
      if (std::none_of(std::begin(kIvyrunNames), std::end(kIvyrunNames), is_ivyruns)) return false;
    }
  }
  return true;
}

std::string given_interpreter(const std::string& given, const Environment& caller) {
  if (given.find('/') != std::string::npos) return given;
  const std::vector<std::string> found = all_in_path(given, caller);
  return found.empty() ? given : found.front();
}

}  // namespace

std::vector<std::string> interpreter_candidates(const Options& options, const Environment& caller,
                                                const std::string& own_directory) {
  // This machine's interpreters do not matter in a container.
  if (!options.container.empty() && !options.python.empty()) return {options.python};
  if (!options.container.empty()) return {"python3", "python"};
  if (!options.python.empty()) return {given_interpreter(options.python, caller)};
  const std::string* configured = find_variable(caller, "IVY_PYTHON");
  if (configured != nullptr && !configured->empty())
    return {given_interpreter(*configured, caller)};
  std::vector<std::string> candidates;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string* prefix = find_variable(caller, name);
    if (prefix != nullptr && !prefix->empty() && is_program(*prefix + "/bin/python"))
      candidates.push_back(*prefix + "/bin/python");
  }
  for (const char* name : {"python3", "python"}) {
    for (const std::string& found : all_in_path(name, caller)) {
      candidates.push_back(found);
      if (!is_ivyruns_only(found.substr(0, found.rfind('/')), own_directory)) break;
    }
  }
  // ivyrun's own environment comes last.
  std::stable_partition(candidates.begin(), candidates.end(), [&](const std::string& path) {
    return !is_ivyruns_only(path.substr(0, path.rfind('/')), own_directory);
  });
  if (candidates.empty()) return {"python3", "python"};
  return candidates;
}

std::string path_without_environment(const Environment& caller) {
  const std::string* path = find_variable(caller, "PATH");
  std::string_view rest = path == nullptr ? std::string_view() : std::string_view(*path);
  std::vector<std::string_view> kept;
  while (!rest.empty()) {
    const std::string_view entry = take_part(rest, ':');
    bool is_environments = false;
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
      const std::string* prefix = find_variable(caller, name);
      is_environments |= prefix != nullptr && !prefix->empty() && entry == *prefix + "/bin";
    }
    if (!is_environments) kept.push_back(entry);
  }
  return joined(kept, ":");
}

}  // namespace ivy
