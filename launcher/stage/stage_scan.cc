// SPDX-License-Identifier: Apache-2.0
// scan() is the sequence: the root (find_root()), the list (git_list() or walk()), the checks, the
// hashes (add_hashes()).
#include "launcher/stage/stage_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/stage/python_environment.h"
#include "launcher/streams/command_output.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/trust/sha256.h"

namespace ivy::stage {
namespace {

constexpr std::chrono::seconds kGitLimit{120};
constexpr std::size_t kMaxGitBytes = 256u << 20;
// Level 1 compresses several times faster than networks carry bytes.
constexpr int kBlockLevel = 1;
constexpr std::size_t kReadBytes = 1u << 20;
// A file that was changed this recently may change again within the resolution of its time.
constexpr std::int64_t kUnsettledNs = 2'000'000'000;
constexpr std::size_t kMaxHashFileBytes = 128u << 20;

Error unreadable(const std::string& path, int why) {
  Error error = errno_error(Code::kFailedPrecondition, "read " + path, why);
  error.fix = "make it readable, or leave it out: --stage='DIR:!PATTERN'";
  return error;
}

Result<std::string> git(const ScanRequest& request, const std::string& directory,
                        std::vector<std::string> arguments) {
  CommandRequest command;
  command.name = "git " + arguments.front();
  command.arguments = {"git", "-C", directory};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  // git is a system tool: the user's libraries are for the workers.
  for (const EnvVariable& variable : request.caller)
    if (variable.name != "LD_LIBRARY_PATH" && variable.name != "LD_PRELOAD")
      command.environment.push_back(variable);
  command.deadline = kGitLimit;
  command.max_bytes = kMaxGitBytes;
  return command_output(command);
}

// Returns true if `directory` or one above it has .git.
bool is_in_work_tree(std::string directory) {
  for (;;) {
    if (access((directory + "/.git").c_str(), F_OK) == 0) return true;
    const std::size_t slash = directory.rfind('/');
    if (slash == std::string::npos || directory.size() <= 1) return false;
    directory.resize(slash);
  }
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string absolute(const std::string& path, const std::string& directory) {
  return path.starts_with("/") ? path : directory + "/" + path;
}

// Returns the path without "." and "..", as far as the system resolves it.
std::string without_dots(const std::string& path) {
  std::string rest;
  return is_below(path, "/", rest) ? "/" + rest : path;
}

Result<std::string> find_root(const ScanRequest& request) {
  if (!request.directory.empty()) {
    const std::string root = without_dots(absolute(request.directory, request.working_directory));
    if (is_directory(root)) return root;
    return Error{Code::kNotFound, "--stage: " + root + " is not a directory"};
  }
  const std::string program = absolute(request.program, request.working_directory);
  if (!request.program.empty() && is_directory(program))
    return Error{Code::kInvalidArgument,
                 "--stage: the program " + request.program + " is a directory",
                 "write the directory with an equals sign: --stage=" + request.program};
  if (is_in_work_tree(request.working_directory)) {
    const Result<std::string> top =
        git(request, request.working_directory, {"rev-parse", "--show-cdup"});
    if (!top.ok())
      return Error{top.error().code, "--stage: " + top.error().message,
                   "name the directory and the files, so that git is not needed: "
                   "--stage='.:**'"};
    std::string up = *top;
    while (!up.empty() && (up.back() == '\n' || up.back() == '/')) up.pop_back();
    return without_dots(request.working_directory + "/" + up);
  }
  struct stat status {};
  const bool is_file = !request.program.empty() && stat(program.c_str(), &status) == 0;
  if (is_file) return without_dots(program.substr(0, program.rfind('/')));
  return request.working_directory;
}

void count_progress(const ScanRequest& request, std::uint64_t steps) {
  if (request.progress) *request.progress += steps;
}

// Adds a file that exists. Skips what cannot be staged, such as sockets.
Result<void> add(const ScanRequest& request, const std::string& path, SourceTree& tree) {
  count_progress(request, 1);
  SourceFile file;
  file.path = path;
  file.file = tree.root + "/" + path;
  struct stat status {};
  if (lstat(file.file.c_str(), &status) != 0)
    return errno == ENOENT ? Result<void>() : unreadable(file.file, errno);
  file.mode = status.st_mode;
  file.mtime_ns = file_time_ns(status.st_mtim);
  file.ctime_ns = file_time_ns(status.st_ctim);
  file.inode = status.st_ino;
  if (S_ISREG(status.st_mode)) file.size = static_cast<std::uint64_t>(status.st_size);
  if (S_ISLNK(status.st_mode)) {
    std::array<char, PATH_MAX> target{};
    const ssize_t length = readlink(file.file.c_str(), target.data(), target.size());
    if (length < 0) return unreadable(file.file, errno);
    file.link.assign(target.data(), static_cast<std::size_t>(length));
  }
  if (S_ISREG(status.st_mode) || S_ISLNK(status.st_mode) || S_ISDIR(status.st_mode))
    tree.files.push_back(std::move(file));
  return {};
}

// Lists with git. Repositories inside, which git names with a '/' at the end or as submodules, are
// listed the same way.
Result<void> git_list(const ScanRequest& request, const Patterns& patterns,
                      const std::string& below, SourceTree& tree) {
  const Result<std::string> output =
      git(request, tree.root + "/" + below, {"ls-files", "-co", "--exclude-standard", "-z"});
  if (!output.ok())
    return Error{output.error().code, "--stage: " + output.error().message,
                 "name the files, so that git is not needed: --stage='" + tree.root + ":**'"};
  std::set<std::string> repositories;
  for (std::string_view name : parts_of(*output, '\0')) {
    if (name.empty()) continue;
    if (name.ends_with('/')) name.remove_suffix(1);
    const std::string path = below + std::string(name);
    if (!patterns.selects(path)) continue;
    const std::size_t before = tree.files.size();
    IVY_CHECK(add(request, path, tree));
    if (tree.files.size() > before && S_ISDIR(tree.files.back().mode)) {
      tree.files.pop_back();
      repositories.insert(path + "/");
    }
  }
  for (const std::string& repository : repositories)
    if (access((tree.root + "/" + repository + ".git").c_str(), F_OK) == 0)
      IVY_CHECK(git_list(request, patterns, repository, tree));
  return {};
}

bool is_never_staged(const std::string& name) {
  return name == ".git" || name == ".hg" || name == ".svn" || name == "__pycache__";
}

Result<void> walk(const ScanRequest& request, const Patterns& patterns, const std::string& below,
                  SourceTree& tree) {
  const std::string directory = below.empty() ? tree.root : tree.root + "/" + below;
  const OpenDirectory opened(opendir(directory.c_str()));
  if (!opened) return unreadable(directory, errno);
  for (const std::string& name : names_in(directory)) {
    const std::string path = below.empty() ? name : below + "/" + name;
    if (is_never_staged(name) || patterns.leaves_out(path)) continue;
    const std::size_t before = tree.files.size();
    IVY_CHECK(add(request, path, tree));
    if (tree.files.size() == before) continue;
    const bool is_directory = S_ISDIR(tree.files.back().mode);
    if (!is_directory && !patterns.selects(path)) tree.files.pop_back();
    if (!is_directory) continue;
    if (access((directory + "/" + name + "/pyvenv.cfg").c_str(), F_OK) == 0 &&
        !patterns.has_selection()) {
      tree.files.pop_back();
      tree.notes.push_back("--stage leaves out the virtual environment " + tree.root + "/" + path);
      continue;
    }
    // Empty directories are staged unless only some files are wanted.
    if (patterns.has_selection()) tree.files.pop_back();
    IVY_CHECK(walk(request, patterns, path, tree));
    if (tree.files.size() > kMaxEntries) return {};  // check_files() reports it.
  }
  return {};
}

// -- Hashes

Result<std::string> hash_of(const ScanRequest& request, const SourceFile& file) {
  const Descriptor fd(::open(file.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return unreadable(file.file, errno);
  Sha256 hash;
  std::string buffer(std::min<std::uint64_t>(kReadBytes, file.size + 1), '\0');
  ssize_t count = 0;
  while ((count = read(fd.get(), buffer.data(), buffer.size())) > 0) {
    hash.add({buffer.data(), static_cast<std::size_t>(count)});
    count_progress(request, static_cast<std::uint64_t>(count));
  }
  if (count < 0) return unreadable(file.file, errno);
  IVY_CHECK(check_unchanged(file));
  return hash.digest();
}

// The hashes of an earlier scan of the same root, with what shows that a file is unchanged. The
// change time cannot be set by programs.
std::string key_of(const SourceFile& file) {
  return std::to_string(file.size) + " " + std::to_string(file.mtime_ns) + " " +
         std::to_string(file.ctime_ns) + " " + std::to_string(file.inode) + " " + file.path;
}

// Returns ivyrun's directory in the user's cache; empty if there is none.
std::string cache_directory(const ScanRequest& request) {
  const std::string* cache = find_variable(request.caller, "XDG_CACHE_HOME");
  const std::string* home = find_variable(request.caller, "HOME");
  const bool has_cache = cache != nullptr && cache->starts_with("/");
  if (!has_cache && (home == nullptr || !home->starts_with("/"))) return "";
  return (has_cache ? *cache : *home + "/.cache") + "/ivyrun";
}

std::string hash_file(const ScanRequest& request, const std::string& root) {
  const std::string directory = cache_directory(request);
  if (directory.empty()) return "";
  Sha256 name;
  name.add(root);
  return directory + "/stage-hashes-" + hexadecimal(name.digest()).substr(0, 16);
}

// Each record is the hash, the key, and a NUL.
std::map<std::string, std::string> read_hashes(const std::string& path) {
  constexpr std::size_t kHashBytes = 32;
  std::map<std::string, std::string> known;
  if (path.empty()) return known;
  const std::string text = read_file(path, kMaxHashFileBytes).value_or("");
  // A hash may contain NUL, so the text is not split at each of them.
  for (std::size_t at = 0; at + kHashBytes < text.size();) {
    const std::size_t end = text.find('\0', at + kHashBytes);
    if (end == std::string::npos) break;
    known[text.substr(at + kHashBytes, end - at - kHashBytes)] = text.substr(at, kHashBytes);
    at = end + 1;
  }
  return known;
}

Result<void> add_hashes(const ScanRequest& request, SourceTree& tree) {
  const std::string path = hash_file(request, tree.root);
  const std::map<std::string, std::string> known = read_hashes(path);
  const std::int64_t now = wall_ms() * 1'000'000;
  std::string records;
  bool has_new = false;
  for (SourceFile& file : tree.files) {
    if (!S_ISREG(file.mode)) continue;
    const std::string key = key_of(file);
    const auto found = known.find(key);
    file.sha256 = found != known.end() ? found->second : IVY_TRY(hash_of(request, file));
    const bool is_settled = now - std::max(file.mtime_ns, file.ctime_ns) > kUnsettledNs;
    has_new |= found == known.end() && is_settled;
    if (is_settled) records += file.sha256 + key + '\0';
  }
  // Without the file, the next scan only takes longer.
  if (has_new && !path.empty() && records.size() <= kMaxHashFileBytes) {
    mkdir(path.substr(0, path.rfind('/')).c_str(), 0700);
    (void)write_whole(path, records);
  }
  return {};
}

// -- The environment

// Leaves the environment out of the project's files: git may not ignore it, and it is sent apart.
void leave_out_environment(const ScanRequest& request, SourceTree& tree) {
  std::string inside;
  if (!is_below(environment_of_interpreter(request.interpreters.front()), tree.root, inside) ||
      inside.empty())
    return;
  std::erase_if(tree.files, [&](const SourceFile& file) {
    return file.path == inside || file.path.starts_with(inside + "/");
  });
}

Result<void> add_environment(const ScanRequest& request, SourceTree& tree) {
  const std::string& interpreter = request.interpreters.front();
  const std::string prefix = environment_of_interpreter(interpreter);
  if (prefix.empty())
    return Error{Code::kFailedPrecondition,
                 "--stage-venv: " + interpreter + " is not in a virtual environment",
                 "activate an environment, or name it: --activate DIR or --activate conda:NAME"};
  const PythonEnvironment environment = IVY_TRY(read_python_environment(prefix));
  const std::string cache = cache_directory(request);
  if (cache.empty())
    return Error{Code::kFailedPrecondition, "--stage-venv: HOME is not set", "set HOME"};
  const std::string made = cache + "/environments";
  for (const std::string& directory : {cache.substr(0, cache.rfind('/')), cache, made})
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
      return errno_error(Code::kResourceExhausted, directory, errno);
  EnvironmentFiles found = IVY_TRY(list_environment(environment, tree.root, made));
  for (SourceFile& file : found.files) tree.files.push_back(std::move(file));
  for (std::string& note : found.notes) tree.notes.push_back(std::move(note));
  tree.imports = std::move(found.imports);
  tree.requirements = std::move(found.requirements);
  if (!environment.managed_python.empty())
    tree.shared.emplace_back().set_path(std::string(kPythonPart));
  tree.shared.emplace_back().set_path(std::string(kEnvironmentPart));
  return {};
}

}  // namespace

Result<SourceTree> scan(const ScanRequest& request) {
  SourceTree tree;
  tree.root = IVY_TRY(find_root(request));
  const Patterns patterns(request.patterns);
  if (!patterns.has_selection() && is_in_work_tree(tree.root))
    IVY_CHECK(git_list(request, patterns, "", tree));
  else
    IVY_CHECK(walk(request, patterns, "", tree));
  if (tree.files.empty())
    return Error{Code::kNotFound, "--stage: no file of " + tree.root + " is selected"};
  if (!request.interpreters.empty()) leave_out_environment(request, tree);
  IVY_CHECK(check_files(tree.files, tree.root, request.limit));
  if (!request.interpreters.empty()) IVY_CHECK(add_environment(request, tree));
  IVY_CHECK(add_hashes(request, tree));
  for (StageShared& shared : tree.shared) shared = shared_part(tree.files, shared.path());
  return tree;
}

Result<void> check_unchanged(const SourceFile& file) {
  struct stat status {};
  const bool is_same = lstat(file.file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
                       static_cast<std::uint64_t>(status.st_size) == file.size &&
                       file_time_ns(status.st_mtim) == file.mtime_ns && status.st_ino == file.inode;
  if (is_same) return {};
  return Error{Code::kFailedPrecondition, file.file + " changed while it was staged",
               "wait until nothing writes to it, or leave it out: --stage='DIR:!PATTERN'"};
}

Result<std::vector<std::string>> read_blocks(const std::vector<SourceFile>& sources,
                                             const BlockMap& blocks, std::uint64_t first,
                                             std::size_t count) {
  std::vector<std::string> messages;
  Descriptor fd;
  std::uint32_t opened = 0;
  for (std::uint64_t number = first; number < first + count && number < blocks.blocks(); ++number) {
    std::string bytes;
    bytes.reserve(blocks.block_bytes(number));
    for (const Segment& segment : blocks.segments(number)) {
      const SourceFile& file = sources[segment.object];
      if (!fd || opened != segment.object) {
        fd.reset(::open(file.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (!fd) return unreadable(file.file, errno);
        opened = segment.object;
      }
      const std::size_t at = bytes.size();
      bytes.resize(at + segment.bytes);
      std::size_t done = 0;
      while (done < segment.bytes) {
        const ssize_t got = pread(fd.get(), bytes.data() + at + done, segment.bytes - done,
                                  static_cast<off_t>(segment.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) IVY_CHECK(check_unchanged(file));
        if (got <= 0) return unreadable(file.file, got < 0 ? errno : EIO);
        done += static_cast<std::size_t>(got);
      }
      if (segment.offset + segment.bytes == file.size) IVY_CHECK(check_unchanged(file));
    }
    StageOrder order;
    StageBlock& block = *order.mutable_block();
    block.set_number(number);
    std::string packed = compressed(bytes, kBlockLevel);
    block.set_is_compressed(!packed.empty() && packed.size() < bytes.size());
    block.set_bytes(block.is_compressed() ? std::move(packed) : std::move(bytes));
    messages.push_back(framed(order.SerializeAsString()));
  }
  return messages;
}

std::vector<std::string> manifest_messages(const StageManifest& manifest) {
  constexpr int kManifestLevel = 3;
  const std::string text = manifest.SerializeAsString();
  const std::string packed = compressed(text, kManifestLevel);
  std::vector<std::string> messages;
  for (std::size_t at = 0; at == 0 || at < packed.size(); at += kManifestPartBytes) {
    StageOrder order;
    StageManifestPart& part = *order.mutable_manifest();
    part.set_bytes(packed.substr(at, kManifestPartBytes));
    part.set_last(at + kManifestPartBytes >= packed.size());
    part.set_size(text.size());
    messages.push_back(framed(order.SerializeAsString()));
  }
  return messages;
}

}  // namespace ivy::stage
