// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/python_environment.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/wire/job.pb.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

// Far more than any environment has; each entry takes about 300 bytes of memory.
constexpr std::size_t kMaxFiles = 1'000'000;
// Longest text file that is searched for the environment's path.
constexpr std::size_t kMaxTextBytes = 1u << 20;
// Longest record of one conda package.
constexpr std::size_t kMaxRecordBytes = 32u << 20;
constexpr std::size_t kMaxConfigBytes = 64u << 10;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string parent_of(const std::string& path) {
  return path.substr(0, std::min(path.rfind('/'), path.size()));
}

// Returns "x86_64" for the machine of an ELF file; empty for other files and unknown machines.
std::string elf_architecture(std::string_view begin) {
  if (begin.size() < 20 || !begin.starts_with(std::string_view(ELFMAG, SELFMAG))) return {};
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(begin[at]); };
  const bool is_little = byte(EI_DATA) == ELFDATA2LSB;
  const int machine = is_little ? byte(18) | byte(19) << 8 : byte(19) | byte(18) << 8;
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return is_little ? "ppc64le" : "ppc64";
    case EM_RISCV:
      return "riscv64";
    case EM_S390:
      return "s390x";
    default:
      return {};
  }
}

// Returns true for "libx.so", "libx.so.1" and "_x.cpython-311-x86_64-linux-gnu.so".
bool is_shared_library(std::string_view name) {
  return name.ends_with(".so") || name.find(".so.") != std::string_view::npos;
}

// Returns whether the host makes this link: the interpreter's names in an environment whose Python
// is elsewhere.
bool is_interpreter_link(const std::string& path) {
  constexpr std::string_view kBin = "bin/python";
  if (!path.starts_with(kBin)) return false;
  return path.find_first_not_of("0123456789.t", kBin.size()) == std::string::npos;
}

// Walks through an environment, or a Python installation, and collects its files.
class Collector {
 public:
  Collector(const PythonEnvironment& environment, std::string project)
      : environment_(environment),
        directories_{environment.prefix, environment.prefix + "/" + environment.site,
                     std::move(project)} {
    utsname system{};
    uname(&system);
    own_architecture_ = system.machine;
  }

  Result<void> collect() {
    std::error_code error;
    fs::recursive_directory_iterator at(environment_.prefix, error), end;
    for (; !error && at != end; at.increment(error)) {
      const std::string path = at->path().string().substr(environment_.prefix.size() + 1);
      IVY_CHECK(add(path));
      if (files_.files.size() > kMaxFiles)
        return Error{Code::kResourceExhausted,
                     environment_.prefix + " has more than " + std::to_string(kMaxFiles) + " files",
                     "use an environment with only the packages of the program"};
    }
    if (error) return Error{Code::kUnavailable, environment_.prefix + ": " + error.message(), ""};
    return {};
  }

  // Reads the records of conda's packages, which name the files that contain the prefix.
  Result<void> read_conda_records() {
    const std::string folder = environment_.prefix + "/conda-meta";
    for (const std::string& name : names_in(folder)) {
      if (!name.ends_with(".json")) continue;
      const std::string text = read_file(folder + "/" + name, kMaxRecordBytes).value_or("");
      boost::system::error_code error;
      const boost::json::value record = boost::json::parse(text, error);
      if (error)
        return Error{Code::kFailedPrecondition,
                     folder + "/" + name + " is not a record of a package: " + error.message(),
                     "reinstall " + name.substr(0, name.size() - 5) + " with conda"};
      const boost::json::value* paths =
          record.is_object() ? record.find_pointer("/paths_data/paths", error) : nullptr;
      if (paths == nullptr || !paths->is_array()) continue;
      for (const boost::json::value& entry : paths->get_array()) add_conda_path(entry);
    }
    return {};
  }

  EnvironmentFiles finish() {
    if (environment_.kind != EnvironmentKind::kInstallation) add_description();
    std::ranges::sort(files_.imports);
    std::ranges::sort(files_.files, {},
                      [](const EnvironmentFile& file) { return std::tie(file.size, file.path); });
    return std::move(files_);
  }

 private:
  bool is_venv() const { return environment_.kind == EnvironmentKind::kVenv; }

  void add_conda_path(const boost::json::value& entry) {
    if (!entry.is_object()) return;
    const auto text = [&](const char* name) -> std::string {
      const boost::json::value* found = entry.get_object().if_contains(name);
      return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
    };
    const std::string placeholder = text("prefix_placeholder");
    const std::string path = text("_path");
    if (placeholder.empty() || path.empty()) return;
    if (text("file_mode") == "binary") binaries_[path] = placeholder.size();
    if (text("file_mode") == "text") texts_.insert(path);
  }

  Result<void> add(const std::string& path) {
    const std::string source = environment_.prefix + "/" + path;
    struct stat info {};
    if (lstat(source.c_str(), &info) != 0) return {};  // Removed meanwhile.
    if (S_ISLNK(info.st_mode)) return add_link(path, source);
    if (!S_ISREG(info.st_mode)) return {};
    return add_file(path, source, info);
  }

  Result<void> add_link(const std::string& path, const std::string& source) {
    if (is_venv() && is_interpreter_link(path)) return {};
    std::error_code error;
    const std::string target = fs::read_symlink(source, error).string();
    const std::string meant =
        (target.starts_with('/') ? fs::path(target) : fs::path(source).parent_path() / target)
            .lexically_normal()
            .string();
    EnvironmentFile file;
    file.path = path;
    if (path_inside(meant, environment_.prefix)) {
      file.link = fs::path(meant).lexically_relative(fs::path(source).parent_path()).string();
      files_.files.push_back(std::move(file));
      return {};
    }
    // uv can link packages to its cache; then the content is sent.
    struct stat info {};
    if (stat(source.c_str(), &info) != 0) return {};
    if (S_ISREG(info.st_mode)) return add_file(path, source, info);
    return Error{Code::kFailedPrecondition,
                 "the environment " + environment_.prefix +
                     " contains a link to a directory: " + path + " -> " + target,
                 "replace the link by a copy of that directory"};
  }

  Result<void> add_file(const std::string& path, const std::string& source,
                        const struct stat& info) {
    if (is_venv() && (is_interpreter_link(path) || path == "pyvenv.cfg")) return {};
    EnvironmentFile file;
    file.path = path;
    file.mode = info.st_mode & 0777;
    file.source = source;
    file.size = static_cast<std::uint64_t>(info.st_size);
    if (path.ends_with(".pth") && parent_of(path) == environment_.site) {
      const Result<bool> is_kept = relocate_references(file);
      if (!is_kept.ok()) return is_kept.error();
      if (!*is_kept) return {};
    } else if (path.ends_with("_finder.py") && file_name(path).starts_with("__editable__")) {
      if (!is_finder_needed(source)) return {};
    } else if (path.starts_with("bin/")) {
      relocate_script(file);
    }
    note_architecture(file);
    files_.files.push_back(std::move(file));
    return {};
  }

  static void replace_head(EnvironmentFile& file, NewHead change) {
    file.size = file.size - change.skip + change.head.size();
    file.head = std::move(change.head);
    file.skip = change.skip;
  }

  // Returns whether setuptools' module for an editable install is still needed. If it is not, the
  // .pth file that loads it is not, either.
  bool is_finder_needed(const std::string& source) const {
    if (directories_.project.empty()) return true;
    const auto found =
        relocate_editable_finder(read_file(source, kMaxTextBytes).value_or(""), directories_);
    return !found || !found->outside.empty();
  }

  Result<bool> relocate_references(EnvironmentFile& file) {
    const std::string text = read_file(file.source, kMaxTextBytes).value_or("");
    References found = relocate_pth(text, directories_);
    if (!directories_.project.empty()) {
      // "import __editable___bar_0_1_finder; __editable___bar_0_1_finder.install()"
      const std::size_t begin = text.find("__editable___");
      const std::size_t end = text.find(';', std::min(begin, text.size()));
      if (begin != std::string::npos && end != std::string::npos) {
        const std::string module =
            directories_.site + "/" + text.substr(begin, end - begin) + ".py";
        if (auto editable = relocate_editable_finder(read_file(module, kMaxTextBytes).value_or(""),
                                                     directories_)) {
          if (editable->outside.empty()) found.text.clear();
          for (auto& path : editable->imports) found.imports.push_back(std::move(path));
          for (auto& path : editable->outside) found.outside.push_back(std::move(path));
        }
      }
    }
    if (!found.outside.empty()) return outside_error(file, found.outside.front());
    for (const std::string& path : found.imports)
      if (std::ranges::find(files_.imports, path) == files_.imports.end())
        files_.imports.push_back(path);
    if (found.text.empty()) return false;
    if (found.text != text) {
      file.source.clear();
      file.size = found.text.size();
      file.head = std::move(found.text);
    }
    return true;
  }

  // "__editable__.foo-0.1.pth" belongs to foo-0.1, "_foo.pth" to foo.
  Error outside_error(const EnvironmentFile& file, const std::string& directory) const {
    std::string name = file_name(file.path);
    name.resize(name.size() - 4);
    constexpr std::string_view kEditable = "__editable__.";
    if (name.starts_with(kEditable)) name.erase(0, kEditable.size());
    name.erase(0, std::min(name.find_first_not_of('_'), name.size()));
    return {Code::kFailedPrecondition,
            "the environment " + environment_.prefix + " imports package " + name + " from " +
                directory + ", which is not in the staged directory " + directories_.project +
                " (" + file.path + ")",
            "install it without --editable: pip install " + directory +
                "\nor stage a directory that contains it: --stage DIR"};
  }

  void relocate_script(EnvironmentFile& file) {
    if (file.size > kMaxTextBytes) return;
    const std::string text = read_file(file.source, kMaxTextBytes).value_or("");
    if (text.starts_with(std::string_view(ELFMAG, SELFMAG))) return;
    std::uint64_t rest = 0;
    if (auto change =
            relocatable_script(std::string_view(text).substr(0, kHeadBytes), environment_.prefix)) {
      rest = change->skip;
      replace_head(file, std::move(*change));
    }
    if (text.find(environment_.prefix, rest) != std::string::npos) texts_.insert(file.path);
  }

  // A package may contain libraries for other machines, which it does not load; so this machine's
  // count first.
  void note_architecture(const EnvironmentFile& file) {
    if (architecture_ == own_architecture_ || !is_shared_library(file_name(file.path))) return;
    std::string architecture = elf_architecture(read_file(file.source, 20).value_or(""));
    if (architecture.empty() || (!architecture_.empty() && architecture != own_architecture_))
      return;
    architecture_ = std::move(architecture);
    compiled_file_ = file.path;
  }

  void add_description() {
    StagedPython description;
    description.set_is_conda(environment_.kind == EnvironmentKind::kConda);
    description.set_prefix(environment_.prefix);
    description.set_home(environment_.config.home);
    description.set_version(environment_.config.version);
    description.set_has_system_packages(environment_.config.has_system_packages);
    description.set_architecture(architecture_);
    description.set_compiled_file(compiled_file_);
    for (const std::string& path : texts_) description.add_texts(path);
    for (const auto& [path, length] : binaries_) {
      StagedPython::Binary& binary = *description.add_binaries();
      binary.set_path(path);
      binary.set_placeholder_length(static_cast<std::uint32_t>(length));
    }
    EnvironmentFile file;
    file.path = kEnvironmentDescription;
    file.mode = 0644;
    file.head = description.SerializeAsString();
    file.size = file.head.size();
    files_.files.push_back(std::move(file));
  }

  const PythonEnvironment& environment_;
  const StagedDirectories directories_;
  EnvironmentFiles files_;
  std::set<std::string> texts_;                  // Files in which the host replaces the prefix.
  std::map<std::string, std::size_t> binaries_;  // The same, with the length of the placeholder.
  std::string own_architecture_, architecture_, compiled_file_;
};

// Returns "lib/python3.11/site-packages" of an environment; empty if it has none.
std::string site_of(const std::string& prefix, const std::string& version) {
  std::string found;
  for (const std::string& name : names_in(prefix + "/lib")) {
    const std::string site = "lib/" + name + "/site-packages";
    if (!name.starts_with("python") || !exists(prefix + "/" + site)) continue;
    const bool is_exact = name == "python" + short_version(version);
    if (is_exact || found.empty()) found = site;
    if (is_exact) break;
  }
  return found;
}

// Returns the directory of uv's Python: ".../uv/python/cpython-3.12.1-linux-x86_64-gnu". A venv may
// name it by a link to the newest patch version.
std::string managed_python(const std::string& home) {
  std::error_code error;
  const fs::path root = fs::canonical(home, error).parent_path();
  if (error || !root.filename().string().starts_with("cpython-")) return {};
  // Python installed by others, such as pyenv, contains the path of its directory.
  return root.parent_path().filename() == "python" &&
                 root.parent_path().parent_path().filename() == "uv"
             ? root.string()
             : "";
}

}  // namespace

std::string environment_of_interpreter(const std::string& interpreter) {
  std::string prefix = parent_of(parent_of(interpreter));
  if (prefix.empty()) return {};
  return exists(prefix + "/pyvenv.cfg") || exists(prefix + "/conda-meta") ? prefix : "";
}

Result<PythonEnvironment> read_python_environment(const std::string& prefix) {
  PythonEnvironment environment;
  environment.prefix = prefix;
  const auto text = read_file(prefix + "/pyvenv.cfg", kMaxConfigBytes);
  const bool is_conda = !text && exists(prefix + "/conda-meta");
  if (!text && !is_conda)
    return Error{Code::kInvalidArgument,
                 prefix + " is not a Python environment: it has no pyvenv.cfg",
                 "create one with `python3 -m venv DIR` or `uv venv`, and activate it or use "
                 "--activate DIR"};
  if (is_conda) environment.kind = EnvironmentKind::kConda;
  if (text) environment.config = parse_venv_config(*text);
  environment.site = site_of(prefix, environment.config.version);
  if (environment.site.empty())
    return Error{Code::kFailedPrecondition,
                 prefix + " has no directory lib/python" +
                     short_version(environment.config.version) + "/site-packages",
                 "create the environment again"};
  constexpr std::size_t kName = std::string_view("lib/python").size();
  if (environment.config.version.empty())
    environment.config.version =
        environment.site.substr(kName, environment.site.find('/', kName) - kName);
  if (is_conda) return environment;
  if (!exists(environment.config.home))
    return Error{Code::kFailedPrecondition,
                 "the Python of " + prefix + " no longer exists: " + environment.config.home +
                     " (" + prefix + "/pyvenv.cfg)",
                 "create the environment again"};
  environment.managed_python = managed_python(environment.config.home);
  return environment;
}

Result<EnvironmentFiles> list_environment(const PythonEnvironment& environment,
                                          const std::string& project) {
  Collector collector(environment, project);
  IVY_CHECK(collector.collect());
  if (environment.kind == EnvironmentKind::kConda) IVY_CHECK(collector.read_conda_records());
  return collector.finish();
}

Result<EnvironmentFiles> list_managed_python(const std::string& directory) {
  PythonEnvironment python;
  python.prefix = directory;
  python.kind = EnvironmentKind::kInstallation;
  Collector collector(python, "");
  IVY_CHECK(collector.collect());
  return collector.finish();
}

}  // namespace ivy
