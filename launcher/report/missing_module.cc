// SPDX-License-Identifier: Apache-2.0
// missing_module() and missing_library_text() recognize the errors in a worker's last output.
// missing_module_text() searches for an environment on this machine that has the module
// (interpreters(), has_module()), and otherwise advises to install it.
#include "launcher/report/missing_module.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

// More directories than any user's PATH has.
constexpr std::size_t kMaxDirectories = 200;
constexpr std::size_t kMaxNameBytes = 100;

// The distributions of commonly imported modules, by module.
constexpr std::pair<std::string_view, std::string_view> kDistributions[] = {
    {"accelerate", "accelerate"},
    {"bs4", "beautifulsoup4"},
    {"cupy", "cupy-cuda12x"},
    {"cv2", "opencv-python"},
    {"dask", "dask[distributed]"},
    {"datasets", "datasets"},
    {"deepspeed", "deepspeed"},
    {"distributed", "distributed"},
    {"einops", "einops"},
    {"flax", "flax"},
    {"jax", "jax"},
    {"jaxlib", "jaxlib"},
    {"keras", "keras"},
    {"lightgbm", "lightgbm"},
    {"lightning", "lightning"},
    {"matplotlib", "matplotlib"},
    {"mpi4py", "mpi4py"},
    {"numpy", "numpy"},
    {"omegaconf", "omegaconf"},
    {"optax", "optax"},
    {"pandas", "pandas"},
    {"PIL", "pillow"},
    {"psutil", "psutil"},
    {"ray", "ray"},
    {"requests", "requests"},
    {"scipy", "scipy"},
    {"sklearn", "scikit-learn"},
    {"skimage", "scikit-image"},
    {"tensorboard", "tensorboard"},
    {"tensorflow", "tensorflow"},
    {"torch", "torch"},
    {"torchvision", "torchvision"},
    {"tqdm", "tqdm"},
    {"transformers", "transformers"},
    {"triton", "triton"},
    {"vllm", "vllm"},
    {"wandb", "wandb"},
    {"xgboost", "xgboost"},
    {"yaml", "pyyaml"},
};

bool holds(const fs::path& search, const std::string& module) {
  std::error_code ignored;
  return fs::is_directory(search / module, ignored) ||
         fs::is_regular_file(search / (module + ".py"), ignored);
}

// Returns true if one of the directories in which the Python of PREFIX/bin searches for installed
// modules contains the module: PREFIX/lib/python3.11/site-packages and Debian's dist-packages.
bool has_module(const std::string& interpreter, const std::string& module) {
  const fs::path prefix = fs::path(interpreter).parent_path().parent_path();
  for (const char* library : {"lib", "local/lib"}) {
    for (const std::string& name : names_in(prefix / library)) {
      if (!name.starts_with("python3")) continue;
      const fs::path folder = prefix / library / name;
      if (holds(folder / "site-packages", module) || holds(folder / "dist-packages", module))
        return true;
    }
  }
  return false;
}

// A project's own environment comes first: uv, poetry and hatch create it next to the sources.
std::vector<std::string> interpreters(const Environment& caller,
                                      const std::vector<std::string>& project_directories) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& directory) {
    for (const char* name : {"/python3", "/python"}) {
      std::string path = directory + name;
      if (access(path.c_str(), X_OK) == 0) found.push_back(std::move(path));
    }
  };
  for (const std::string& folder : project_directories)
    for (const char* name : {"/.venv/bin", "/venv/bin"}) add(folder + name);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string* prefix = find_variable(caller, name)) add(*prefix + "/bin");
  const std::string* path = find_variable(caller, "PATH");
  std::string_view rest = path == nullptr ? std::string_view() : *path;
  for (std::size_t count = 0; !rest.empty() && count < kMaxDirectories; ++count)
    if (const std::string_view one = take_part(rest, ':'); one.starts_with('/'))
      add(std::string(one));
  add("/usr/bin");
  return found;
}

// Returns " (VIRTUAL_ENV is set to /gone, which has no bin/python)"; empty if nothing is wrong.
std::string missing_environment(const Environment& caller) {
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string* prefix = find_variable(caller, name);
    if (prefix == nullptr || prefix->empty()) continue;
    if (access((*prefix + "/bin/python").c_str(), X_OK) != 0)
      return std::string(" (") + name + " is set to " + RemoteText(*prefix).line() +
             ", which has no bin/python)";
  }
  return {};
}

}  // namespace

std::string missing_module(const std::string& stderr_tail) {
  constexpr std::string_view kPrefix = "ModuleNotFoundError: No module named '";
  const std::size_t at = stderr_tail.rfind(kPrefix);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kPrefix.size();
  const std::size_t end = stderr_tail.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", begin);
  // Python prints a dotted name only if the package itself exists.
  if (end == std::string::npos || stderr_tail[end] != '\'') return {};
  const std::string name = stderr_tail.substr(begin, end - begin);
  return name.size() <= kMaxNameBytes && is_env_name(name) ? name : "";
}

std::string install_advice(const std::string& module, const std::string& interpreter) {
  const auto* const known = std::find_if(std::begin(kDistributions), std::end(kDistributions),
                                         [&](const auto& row) { return row.first == module; });
  if (known == std::end(kDistributions))
    return "if it is your own module, put it next to the script on every host; otherwise install "
           "the package that provides it for " +
           interpreter;
  const std::string name(known->second);
  // The system Pythons of Debian, Ubuntu and Fedora are externally managed, so pip rejects
  // installations.
  if (interpreter.starts_with("/usr/bin/"))
    return interpreter + " -m venv ~/venv && ~/venv/bin/pip install '" + name +
           "', then ivyrun --python ~/venv/bin/python3";
  return interpreter + " -m pip install '" + name + "'";
}

std::string missing_module_text(const std::string& module, const ModuleSearch& search) {
  const std::string& program = search.facts->program_path();
  const bool is_python = program.substr(program.rfind('/') + 1).starts_with("python");
  const std::string& interpreter = is_python ? program : search.facts->interpreter();
  if (module.empty() || interpreter.empty()) return {};
  Diagnostic note;
  note.severity = Severity::kNote;
  note.what = "the workers' Python has no module " + module;
  note.where = search.hosts;
  note.cause = interpreter;
  note.fix = install_advice(module, interpreter);
  if (!search.unsearched_directory.empty() && holds(search.unsearched_directory, module)) {
    note.fix =
        "it is in " + search.unsearched_directory +
        ", which Python does not search for a script in another directory: use -x PYTHONPATH=" +
        search.unsearched_directory + ", or -m with the script's dotted name";
    return render(note);
  }
  const auto beside =
      std::find_if(search.project_directories.begin(), search.project_directories.end(),
                   [&](const std::string& folder) { return holds(folder, module); });
  if (search.has_safe_path && beside != search.project_directories.end()) {
    note.fix =
        "it is in " + *beside +
        ", which Python skips because of PYTHONSAFEPATH: unset it, or use -x PYTHONPATH=" + *beside;
    return render(note);
  }
  const auto own = std::find_if(search.own_directories.begin(), search.own_directories.end(),
                                [&](const std::string& folder) { return holds(folder, module); });
  if (own != search.own_directories.end()) {
    note.fix =
        "it is in " + *own + " on this host: copy it to the others, or use a shared directory";
    return render(note);
  }
  if (search.caller == nullptr) return render(note);
  note.cause += missing_environment(*search.caller);
  for (const std::string& other : interpreters(*search.caller, search.project_directories)) {
    if (other == interpreter || !has_module(other, module)) continue;
    note.fix = "use --python " + other + " (it has " + module + ")";
    break;
  }
  return render(note);
}

// Matches "./hello: error while loading shared libraries: libmpich.so.12: cannot open shared object
// file", and Python's "ImportError: libmpi.so.40: cannot open shared object file". Checks only the
// last line, since some programs print this for optional libraries.
std::string missing_library_text(const std::string& stderr_tail, const ModuleSearch& search) {
  constexpr std::string_view kPrefix = ": cannot open shared object file";
  const std::size_t end = stderr_tail.rfind(kPrefix);
  if (end == std::string::npos) return {};
  const std::size_t line_end = stderr_tail.find('\n', end);
  if (line_end != std::string::npos && line_end + 1 < stderr_tail.size()) return {};
  const std::size_t begin = stderr_tail.find_last_of(" \n'\"", end) + 1;
  const std::string library = stderr_tail.substr(begin, end - begin);
  if (library.find(".so") == std::string::npos || library.size() > kMaxNameBytes) return {};
  Diagnostic note;
  note.severity = Severity::kNote;
  note.what = "the program cannot find the shared library " + RemoteText(library).line();
  note.where = search.hosts;
  note.fix =
      "install it there, as on the other hosts; if it is in a separate directory, use -x "
      "LD_LIBRARY_PATH=/DIRECTORY";
  return render(note);
}

}  // namespace ivy
