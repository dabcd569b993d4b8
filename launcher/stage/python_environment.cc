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
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/trust/sha256.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

// Longest text file that is searched for the environment's path.
constexpr std::size_t kMaxSearchedBytes = 1u << 20;
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

stage::SourceFile source_file(std::string path, std::string file, const struct stat& info) {
  stage::SourceFile entry;
  entry.path = std::move(path);
  entry.file = std::move(file);
  entry.mode = info.st_mode;
  entry.mtime_ns = stage::file_time_ns(info.st_mtim);
  entry.ctime_ns = stage::file_time_ns(info.st_ctim);
  entry.inode = info.st_ino;
  if (S_ISREG(info.st_mode)) entry.size = static_cast<std::uint64_t>(info.st_size);
  return entry;
}

// Walks through an environment, or a Python installation, and collects its files.
class Collector {
 public:
  Collector(const PythonEnvironment& environment, std::string_view part, std::string project,
            std::string made)
      : environment_(environment),
        part_(std::string(part) + "/"),
        directories_{environment.prefix, environment.prefix + "/" + environment.site,
                     std::move(project)},
        made_(std::move(made)) {
    utsname system{};
    uname(&system);
    own_architecture_ = system.machine;
  }

  Result<void> collect() {
    std::error_code error;
    fs::recursive_directory_iterator at(environment_.prefix, error), end;
    for (; !error && at != end; at.increment(error)) {
      IVY_CHECK(add(at->path().string().substr(environment_.prefix.size() + 1)));
      if (entries_.size() > stage::kMaxEntries)
        return Error{
            Code::kResourceExhausted,
            environment_.prefix + " has more than " + std::to_string(stage::kMaxEntries) + " files",
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

  Result<void> finish(EnvironmentFiles& files) {
    if (environment_.kind != EnvironmentKind::kInstallation) IVY_CHECK(add_description(files));
    std::ranges::sort(imports_);
    std::ranges::sort(entries_, {}, [](const stage::SourceFile& file) {
      return std::tuple(!S_ISDIR(file.mode), file.size, std::string_view(file.path));
    });
    std::ranges::move(entries_, std::back_inserter(files.files));
    std::ranges::move(imports_, std::back_inserter(files.imports));
    return {};
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
    if (S_ISLNK(info.st_mode)) return add_link(path, source, info);
    if (S_ISDIR(info.st_mode)) entries_.push_back(source_file(part_ + path, source, info));
    return S_ISREG(info.st_mode) ? add_file(path, source, info) : Result<void>();
  }

  Result<void> add_link(const std::string& path, const std::string& source,
                        const struct stat& link) {
    if (is_venv() && is_interpreter_link(path)) return {};
    std::error_code error;
    const std::string target = fs::read_symlink(source, error).string();
    const std::string meant =
        (target.starts_with('/') ? fs::path(target) : fs::path(source).parent_path() / target)
            .lexically_normal()
            .string();
    if (path_inside(meant, environment_.prefix)) {
      stage::SourceFile entry = source_file(part_ + path, source, link);
      entry.link = fs::path(meant).lexically_relative(fs::path(source).parent_path()).string();
      entries_.push_back(std::move(entry));
      return {};
    }
    // uv can link packages to its cache; then the content is sent.
    struct stat info {};
    const fs::path file = fs::canonical(source, error);
    if (error || lstat(file.c_str(), &info) != 0) return {};
    if (S_ISREG(info.st_mode)) return add_file(path, file.string(), info);
    return Error{Code::kFailedPrecondition,
                 "the environment " + environment_.prefix +
                     " contains a link to a directory: " + path + " -> " + target,
                 "replace the link by a copy of that directory"};
  }

  Result<void> add_file(const std::string& path, const std::string& source,
                        const struct stat& info) {
    if (is_venv() && (is_interpreter_link(path) || path == "pyvenv.cfg")) return {};
    stage::SourceFile entry = source_file(part_ + path, source, info);
    if (path.ends_with(".pth") && parent_of(path) == environment_.site) {
      if (!IVY_TRY(relocate_references(path, entry))) return {};
    } else if (path.ends_with("_finder.py") && file_name(path).starts_with("__editable__")) {
      if (!is_finder_needed(source)) return {};
    } else if (path.starts_with("bin/")) {
      IVY_CHECK(relocate_script(path, entry));
    }
    note_architecture(path, source);
    entries_.push_back(std::move(entry));
    return {};
  }

  // Makes the entry refer to a file with this content, which is named by it and never changes.
  Result<void> replace_content(stage::SourceFile& entry, const std::string& content) {
    Sha256 hash;
    hash.add(content);
    const std::string file = made_ + "/" + hexadecimal(hash.digest());
    struct stat info {};
    if (lstat(file.c_str(), &info) != 0 && !write_whole(file, content))
      return errno_error(Code::kResourceExhausted, file, errno);
    if (lstat(file.c_str(), &info) != 0) return errno_error(Code::kUnavailable, file, errno);
    const std::uint32_t mode = entry.mode;
    entry = source_file(entry.path, file, info);
    entry.mode = mode;
    return {};
  }

  // Returns whether setuptools' module for an editable install is still needed. If it is not, the
  // .pth file that loads it is not, either.
  bool is_finder_needed(const std::string& source) const {
    if (directories_.project.empty()) return true;
    const auto found =
        relocate_editable_finder(read_file(source, kMaxSearchedBytes).value_or(""), directories_);
    return !found || !found->outside.empty();
  }

  // Returns false if nothing is left of the file.
  Result<bool> relocate_references(const std::string& path, stage::SourceFile& entry) {
    const std::string text = read_file(entry.file, kMaxSearchedBytes).value_or("");
    References found = relocate_pth(text, directories_);
    // "import __editable___bar_0_1_finder; __editable___bar_0_1_finder.install()"
    const std::size_t begin = text.find("__editable___");
    const std::size_t end = text.find(';', std::min(begin, text.size()));
    if (begin != std::string::npos && end != std::string::npos && !directories_.project.empty()) {
      const std::string module = directories_.site + "/" + text.substr(begin, end - begin) + ".py";
      if (auto editable = relocate_editable_finder(
              read_file(module, kMaxSearchedBytes).value_or(""), directories_)) {
        if (editable->outside.empty()) found.text.clear();
        std::ranges::move(editable->imports, std::back_inserter(found.imports));
        std::ranges::move(editable->outside, std::back_inserter(found.outside));
      }
    }
    if (!found.outside.empty()) return outside_error(path, found.outside.front());
    for (const std::string& directory : found.imports)
      if (std::ranges::find(imports_, directory) == imports_.end()) imports_.push_back(directory);
    if (found.text.empty()) return false;
    if (found.text != text) IVY_CHECK(replace_content(entry, found.text));
    return true;
  }

  // "__editable__.foo-0.1.pth" belongs to foo-0.1, "_foo.pth" to foo.
  Error outside_error(const std::string& path, const std::string& directory) const {
    std::string name = file_name(path);
    name.resize(name.size() - 4);
    constexpr std::string_view kEditable = "__editable__.";
    if (name.starts_with(kEditable)) name.erase(0, kEditable.size());
    name.erase(0, std::min(name.find_first_not_of('_'), name.size()));
    return {Code::kFailedPrecondition,
            "the environment " + environment_.prefix + " imports package " + name + " from " +
                directory + ", which is not in the staged directory " + directories_.project +
                " (" + path + ")",
            "install it without --editable: pip install " + directory +
                "\nor stage a directory that contains it: --stage=DIR"};
  }

  Result<void> relocate_script(const std::string& path, stage::SourceFile& entry) {
    if (entry.size > kMaxSearchedBytes) return {};
    std::string text = read_file(entry.file, kMaxSearchedBytes).value_or("");
    if (text.starts_with(std::string_view(ELFMAG, SELFMAG))) return {};
    const auto change =
        relocatable_script(std::string_view(text).substr(0, kHeadBytes), environment_.prefix);
    if (change) {
      text.replace(0, change->skip, change->head);
      IVY_CHECK(replace_content(entry, text));
    }
    if (text.find(environment_.prefix) != std::string::npos) texts_.insert(path);
    return {};
  }

  // A package may contain libraries for other machines, which it does not load; so this machine's
  // count first.
  void note_architecture(const std::string& path, const std::string& source) {
    if (architecture_ == own_architecture_ || !is_shared_library(file_name(path))) return;
    std::string architecture = elf_architecture(read_file(source, 20).value_or(""));
    if (architecture.empty() || (!architecture_.empty() && architecture != own_architecture_))
      return;
    architecture_ = std::move(architecture);
    compiled_file_ = path;
  }

  Result<void> add_description(EnvironmentFiles& files) {
    StagedPython description;
    description.set_is_conda(environment_.kind == EnvironmentKind::kConda);
    description.set_prefix(environment_.prefix);
    description.set_home(environment_.config.home);
    description.set_version(environment_.config.version);
    description.set_has_system_packages(environment_.config.has_system_packages);
    description.set_architecture(architecture_);
    description.set_compiled_file(compiled_file_);
    files.requirements = description;
    for (const std::string& path : texts_) description.add_texts(path);
    for (const auto& [path, length] : binaries_) {
      StagedPython::Binary& binary = *description.add_binaries();
      binary.set_path(path);
      binary.set_placeholder_length(static_cast<std::uint32_t>(length));
    }
    stage::SourceFile entry;
    entry.path = part_ + std::string(stage::kEnvironmentDescription);
    entry.mode = S_IFREG | 0644;
    IVY_CHECK(replace_content(entry, description.SerializeAsString()));
    entries_.push_back(std::move(entry));
    return {};
  }

  const PythonEnvironment& environment_;
  const std::string part_;
  const StagedDirectories directories_;
  const std::string made_;
  std::vector<stage::SourceFile> entries_;
  std::vector<std::string> imports_;
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
                                          const std::string& project, const std::string& made) {
  EnvironmentFiles files;
  if (!environment.managed_python.empty()) {
    PythonEnvironment python;
    python.kind = EnvironmentKind::kInstallation;
    python.prefix = environment.managed_python;
    Collector collector(python, kPythonPart, "", made);
    IVY_CHECK(collector.collect());
    IVY_CHECK(collector.finish(files));
  }
  Collector collector(environment, kEnvironmentPart, project, made);
  IVY_CHECK(collector.collect());
  if (environment.kind == EnvironmentKind::kConda) IVY_CHECK(collector.read_conda_records());
  IVY_CHECK(collector.finish(files));
  if (environment.config.has_system_packages)
    files.notes.push_back("the environment " + environment.prefix + " also uses the packages of " +
                          environment.config.home + ", which are not sent: hosts need their own");
  return files;
}

StageShared shared_part(const std::vector<stage::SourceFile>& files, std::string_view part) {
  Sha256 hash;
  for (const stage::SourceFile& file : files) {
    if (!file.path.starts_with(part) || file.path[part.size()] != '/') continue;
    const std::int64_t time = S_ISREG(file.mode) ? file.mtime_ns : 0;
    hash.add(file.path + '\0' + std::to_string(file.mode) + '\0' + file.link + '\0' +
             std::to_string(time) + '\0' + file.sha256);
  }
  StageShared shared;
  shared.set_path(std::string(part));
  shared.set_name(file_name(std::string(part)) + "-" + hexadecimal(hash.digest()).substr(0, 24));
  return shared;
}

}  // namespace ivy
