// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/activation.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Far more than the list of one user's environments takes.
constexpr std::size_t kMaxEnvironmentList = 1u << 20;

bool has_python(const std::string& prefix) {
  return access((prefix + "/bin/python").c_str(), X_OK) == 0;
}

std::string absolute(const std::string& path) {
  std::error_code ignored;
  std::string text = std::filesystem::absolute(path, ignored).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::string value(const Environment& caller, std::string_view name) {
  const std::string* const found = find_variable(caller, name);
  return found == nullptr ? std::string() : *found;
}

// Returns directories in which conda itself may be installed.
std::vector<std::string> conda_roots(const Environment& caller) {
  std::vector<std::string> roots;
  const std::string program = value(caller, "CONDA_EXE");
  if (const std::size_t bin = program.rfind("/bin/"); bin != std::string::npos)
    roots.push_back(program.substr(0, bin));
  if (const std::string mamba = value(caller, "MAMBA_ROOT_PREFIX"); !mamba.empty())
    roots.push_back(mamba);
  const std::string home = value(caller, "HOME");
  for (const char* name : {"miniconda3", "miniforge3", "mambaforge", "anaconda3"})
    roots.push_back(home + "/" + name);
  roots.push_back("/opt/conda");
  return roots;
}

// conda lists every environment that it has created.
std::optional<std::string> listed_environment(const std::string& name, const Environment& caller) {
  const std::optional<std::string> list =
      read_file(value(caller, "HOME") + "/.conda/environments.txt", kMaxEnvironmentList);
  if (!list) return std::nullopt;
  std::string_view rest = *list;
  while (!rest.empty()) {
    const std::string_view line = take_part(rest, '\n');
    if (line.ends_with("/" + name) && has_python(std::string(line))) return std::string(line);
  }
  return std::nullopt;
}

Result<std::string> conda_prefix(const std::string& name, const Environment& caller) {
  if (name.find('/') != std::string::npos) return absolute(name);
  std::vector<std::string> directories;
  const std::string folders = value(caller, "CONDA_ENVS_PATH");
  std::string_view rest = folders;
  while (!rest.empty()) directories.push_back(std::string(take_part(rest, ':')) + "/" + name);
  for (const std::string& root : conda_roots(caller))
    directories.push_back(name == "base" ? root : root + "/envs/" + name);
  directories.push_back(value(caller, "HOME") + "/.conda/envs/" + name);
  for (const std::string& directory : directories)
    if (has_python(directory)) return directory;
  if (const std::optional<std::string> listed = listed_environment(name, caller)) return *listed;
  return Error{Code::kNotFound,
               "there is no conda environment \"" + name + "\" in " + joined(directories, ", "),
               "give its directory: --activate conda:/path/to/" + name};
}

// Returns the environment's folder if its activation script, Python or bin folder was given.
std::string venv_prefix(const std::string& wanted) {
  std::string prefix = absolute(wanted);
  for (const std::string_view end : {"/bin/activate", "/bin/python", "/bin"})
    if (prefix.ends_with(end)) return prefix.substr(0, prefix.size() - end.size());
  return prefix;
}

}  // namespace

Result<Activation> find_activation(const std::string& wanted, const Environment& caller) {
  constexpr std::string_view kConda = "conda:";
  const bool is_conda = wanted.starts_with(kConda);
  const std::string name = is_conda ? wanted.substr(kConda.size()) : wanted;
  if (name.empty()) return usage_error("the name of the environment is missing");
  const std::string prefix = is_conda ? IVY_TRY(conda_prefix(name, caller)) : venv_prefix(wanted);
  if (!has_python(prefix))
    return Error{Code::kNotFound, prefix + "/bin/python does not exist",
                 is_conda ? "give the directory of a conda environment"
                          : "give a directory created by `python3 -m venv`, or conda:NAME"};
  Activation found;
  found.python = prefix + "/bin/python";
  const std::string path = value(caller, "PATH");
  const bool is_first = path.starts_with(prefix + "/bin:");
  found.set = {{"PATH", is_first ? path : prefix + "/bin" + (path.empty() ? "" : ":" + path)}};
  found.unset = {"PYTHONHOME"};
  if (!is_conda) {
    found.set.push_back({"VIRTUAL_ENV", prefix});
    return found;
  }
  found.set.push_back({"CONDA_PREFIX", prefix});
  found.set.push_back({"CONDA_DEFAULT_ENV", name});
  found.unset.push_back("VIRTUAL_ENV");
  return found;
}

}  // namespace ivy
