// SPDX-License-Identifier: Apache-2.0
// check_program() at the end calls inspect_program(), which finds the interpreter and then checks
// the script or the executable. If a file is missing on a network file system, it repeats that for
// a while, because such file systems show new files late. Runs on a pool thread of the supervisor.
#include "agent/node/facts/program_facts.h"

// SHA256_Init() and related functions need no set-up of libcrypto, which would cost EVP_Digest()
// half a millisecond at every start.
#define OPENSSL_SUPPRESS_DEPRECATED

#include <dirent.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/hex.hpp>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "agent/node/facts/elf_libraries.h"
#include "agent/node/spawn/spawn.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/env.h"
#include "proto/contract/mpi_library.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

std::string errno_text(int error) { return std::strerror(error); }

std::string absolute_path(const std::string& path, const std::string& directory) {
  if (path.starts_with('/')) return path;
  std::string_view rest = path;
  while (rest.starts_with("./") && rest.size() > 2) rest.remove_prefix(2);
  return directory + (directory.ends_with('/') ? "" : "/") + std::string(rest);
}

std::string check_directory(const std::string& directory) {
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0)
    return "working directory " + directory + ": " + errno_text(errno);
  if (!S_ISDIR(info.st_mode)) return "working directory " + directory + ": " + errno_text(ENOTDIR);
  if (access(directory.c_str(), X_OK) != 0)
    return "working directory " + directory + ": " + errno_text(errno);
  return {};
}

bool is_regular_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Returns the file next to a missing one whose name was probably meant; empty if none is similar.
std::string nearest_file(const std::string& path) {
  // Larger directories are not searched, and longer texts are not considered names.
  constexpr int kMaxEntries = 10'000;
  constexpr std::size_t kMaxNameBytes = 64;
  const std::size_t slash = path.rfind('/');
  const std::string wanted = path.substr(slash + 1);
  if (wanted.size() < 3 || wanted.size() > kMaxNameBytes) return {};
  std::size_t best_distance = std::max<std::size_t>(2, wanted.size() / 4) + 1;
  std::string best;
  const OpenDirectory directory(opendir(slash == 0 ? "/" : path.substr(0, slash).c_str()));
  if (!directory) return {};
  int count = 0;
  while (const dirent* entry = readdir(directory.get())) {
    if (++count > kMaxEntries) return {};
    const std::string name = entry->d_name;
    if (name.size() > kMaxNameBytes) continue;
    const std::size_t distance = edit_distance(wanted, name);
    // All two-letter names are similar to each other.
    if (distance >= best_distance || distance * 2 >= wanted.size()) continue;
    if (!is_regular_file(path.substr(0, slash + 1) + name)) continue;
    best = name;
    best_distance = distance;
  }
  return best;
}

// Returns the correct form of "dir/tarin.py": "dir/train.py"; empty if no name is similar.
std::string nearest_program(const std::string& typed, const std::string& path) {
  const std::string near = nearest_file(path);
  return near.empty() ? "" : typed.substr(0, typed.rfind('/') + 1) + near;
}

// Returns "PATH (/usr/bin:/bin)"; shortens a long path.
std::string path_text(const std::string& search_path) {
  constexpr std::size_t kLongest = 60;
  if (search_path.size() <= kLongest) return "PATH (" + search_path + ")";
  const auto colons = std::count(search_path.begin(), search_path.end(), ':');
  return "PATH (" + std::to_string(colons + 1) + " directories)";
}

void set_error(ProgramFacts& facts, int error, const std::string& message) {
  facts.error = message;
  facts.error_number = error;
}

void set_error_with_advice(ProgramFacts& facts, const std::string& message) {
  set_error(facts, ENOENT, message);
  facts.error_has_advice = true;
}

// Returns the SHA-256 of a file in hexadecimal digits. Sets errno if the file cannot be read
// completely.
std::optional<std::string> file_sha256(int fd) {
  SHA256_CTX hash;
  SHA256_Init(&hash);
  const auto buffer = std::make_unique<char[]>(64u << 10);
  ssize_t count = 0;
  while ((count = read(fd, buffer.get(), 64u << 10)) > 0)
    SHA256_Update(&hash, buffer.get(), static_cast<std::size_t>(count));
  if (count < 0) return std::nullopt;
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256_Final(digest.data(), &hash);
  std::string digits;
  boost::algorithm::hex_lower(digest.begin(), digest.end(), std::back_inserter(digits));
  return digits;
}

// Returns the part of the file that the kernel examines; empty if it cannot be read.
std::string first_bytes(const std::string& path) {
  constexpr std::size_t kSearched = 256;
  return read_file(path, kSearched, O_NONBLOCK).value_or("");
}

// Reads the script once: proves that it can be read, and hashes it.
void check_script(const std::string& typed, ProgramFacts& facts) {
  const Descriptor fd(open(facts.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int error = errno;
    const std::string near = error == ENOENT ? nearest_program(typed, facts.path) : "";
    if (near.empty())
      return set_error(facts, error, "script " + facts.path + ": " + errno_text(error));
    return set_error_with_advice(facts, "script " + facts.path + ": it does not exist, but " +
                                            near + " does: write " + near);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode)) {
    set_error(facts, EISDIR, "script " + facts.path + ": " + errno_text(EISDIR));
  } else if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) <= kMaxHashedBytes) {
    const std::optional<std::string> sha256 = file_sha256(fd.get());
    if (!sha256) set_error(facts, errno, "script " + facts.path + ": " + errno_text(errno));
    facts.sha256 = sha256.value_or("");
    const std::string beginning = first_bytes(facts.path);
    if (beginning.starts_with("#!")) facts.shebang = beginning.substr(2, beginning.find('\n') - 2);
  }
}

bool is_python_file(const std::string& program) { return program.ends_with(".py"); }

bool is_program_file(std::string_view beginning) {
  return beginning.starts_with(
      "\x7f"
      "ELF");
}

void find_mpi_libraries(ProgramFacts& facts) {
  for (const std::string& library : needed_libraries(facts.path))
    if (mpi_family(library) != MpiFamily::kNone)
      facts.mpi_libraries += (facts.mpi_libraries.empty() ? "" : " ") + library;
}

// Returns true if the kernel will not run this file, a text without "#!". Leaves binary files to
// the kernel, which may know formats that we do not.
bool is_plain_text(std::string_view beginning) {
  return !beginning.empty() && beginning.find('\0') == std::string_view::npos &&
         !beginning.starts_with("#!");
}

// Extracts "/usr/bin/env" from "#!/usr/bin/env python3\n".
std::string_view named_interpreter(std::string_view beginning) {
  std::string_view line = beginning.substr(2, beginning.find('\n') - 2);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line.substr(0, line.find_first_of(" \t"));
}

// Finds problems that the kernel would only report as "No such file" or "Exec format error".
void check_first_line(const ProgramRequest& request, ProgramFacts& facts) {
  const std::string beginning = first_bytes(facts.path);
  if (is_program_file(beginning)) return find_mpi_libraries(facts);
  if (is_plain_text(beginning))
    return set_error(facts, ENOEXEC, "program " + facts.path + " has no #! line");
  if (!beginning.starts_with("#!")) return;
  std::string name(named_interpreter(beginning));
  const std::string path = absolute_path(name, request.working_directory);
  struct stat info {};
  if (!name.empty() && stat(path.c_str(), &info) == 0) return;
  const bool has_windows_ends = name.ends_with('\r');
  if (has_windows_ends) name.pop_back();
  set_error(facts, kInterpreterMissing,
            "program " + facts.path + " names an interpreter that does not exist: #!" + name +
                (has_windows_ends ? " (its lines end with CR LF: sed -i 's/\\r$//' " + facts.path +
                                        " repairs them)"
                                  : ""));
}

// Returns a hint for a name that is not found in PATH: "..., but ...: write ..."; may be empty.
std::string meant_by(const ProgramRequest& request, const ProgramFacts& facts,
                     const std::string& here) {
  const std::string& name = request.program;
  if (is_regular_file(here + ".py"))
    return " does not exist, but " + here + ".py does: write " + name + ".py";
  if (is_regular_file(here))
    return " is not in PATH, but in the working directory: write ./" + name;
  int ignored = 0;
  if (name == "python" &&
      find_executable("python3", facts.search_path, request.working_directory, &ignored).ok())
    return " is not in PATH, but python3 is: write python3";
  std::string file = here;
  std::replace(file.begin() + static_cast<std::ptrdiff_t>(request.working_directory.size()),
               file.end(), '.', '/');
  if (is_regular_file(file + ".py") || is_regular_file(file + "/__main__.py"))
    return " is not a program, but a Python module: write -m " + name;
  const std::string near = nearest_file(here);
  return near.empty() ? "" : " is not in PATH, but ./" + near + " exists: write ./" + near;
}

void check_executable(const ProgramRequest& request, ProgramFacts& facts) {
  int error = 0;
  const Result<std::string> found =
      find_executable(request.program, facts.search_path, request.working_directory, &error);
  if (found.ok()) {
    // Use the path as the user wrote it: the found one may contain "/./".
    const bool is_path = request.program.find('/') != std::string::npos;
    facts.path = absolute_path(is_path ? request.program : *found, request.working_directory);
    return check_first_line(request, facts);
  }
  // A name without '/' is not looked up in the working directory, but users often expect it.
  const std::string here = absolute_path(request.program, request.working_directory);
  const bool named_by_path = request.program.find('/') != std::string::npos;
  if (is_regular_file(here) && access(here.c_str(), X_OK) != 0) {
    facts.path = here;
    return set_error(facts, EACCES, "program " + here + " is not executable");
  }
  if (error == 0) error = ENOENT;
  std::string meant = named_by_path ? "" : meant_by(request, facts, here);
  if (named_by_path && error == ENOENT) {
    const std::string near = is_regular_file(here + ".py") ? request.program + ".py"
                                                           : nearest_program(request.program, here);
    if (!near.empty()) meant = " does not exist, but " + near + " does: write " + near;
  }
  if (!meant.empty()) return set_error_with_advice(facts, "program " + request.program + meant);
  if (named_by_path) facts.path = here;
  set_error(facts, error,
            "program " + (named_by_path ? here : request.program) + ": " +
                (error == ENOENT && !named_by_path ? "not found in " + path_text(facts.search_path)
                                                   : errno_text(error)));
}

// Explains why a file that may exist cannot be run: "links to /home/bob/py/bin/python3.12, and
// /home/bob cannot be entered". Returns an empty string if nothing more is known.
std::string why_unreachable(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  const std::string folder = path.substr(0, path.rfind('/'));
  const std::string meant =
      length > 0 ? absolute_path(std::string(target, static_cast<std::size_t>(length)), folder)
                 : path;
  const std::string link = length > 0 ? "links to " + meant : "";
  for (std::size_t at = meant.find('/', 1); at != std::string::npos; at = meant.find('/', at + 1)) {
    const std::string parent = meant.substr(0, at);
    if (access(parent.c_str(), X_OK) == 0) continue;
    if (errno != EACCES && link.empty()) return "";
    const std::string closed =
        errno == EACCES ? parent + " cannot be entered" : parent + ": " + errno_text(errno);
    return link + (link.empty() ? "" : ", and ") + closed;
  }
  return link;
}

// Looks for a Python in locations that were not searched.
std::string other_python() {
  for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3"})
    if (access(path, X_OK) == 0) return path;
  return "";
}

void find_interpreter(const ProgramRequest& request, ProgramFacts& facts) {
  std::string tried;
  bool searched_path = false;
  for (const std::string& candidate : request.interpreters) {
    int error = 0;
    const Result<std::string> found =
        find_executable(candidate, facts.search_path, request.working_directory, &error);
    if (found.ok()) {
      facts.interpreter = absolute_path(*found, request.working_directory);
      facts.interpreter_version = python_version(facts.interpreter);
      return;
    }
    const std::string why = candidate.starts_with('/') ? why_unreachable(candidate) : "";
    tried += (tried.empty() ? "" : ", ") + candidate + " (" + errno_text(error ? error : ENOENT) +
             (why.empty() ? "" : ": " + why) + ")";
    searched_path = searched_path || candidate.find('/') == std::string::npos;
  }
  facts.interpreter_error =
      tried.empty() ? "no interpreter was requested" : "no interpreter was found; tried " + tried;
  if (searched_path) facts.interpreter_error += " in " + path_text(facts.search_path);
  if (const std::string other = other_python(); !other.empty())
    facts.interpreter_error += ": write --python " + other + ", which exists";
}

std::string version_in_name(std::string_view name) {
  constexpr std::string_view kPrefix = "python";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  for (const char c : name)
    if (!std::isdigit(static_cast<unsigned char>(c)) && c != '.') return {};
  return std::string(name);
}

// Reads "version = 3.11.2" or "version_info = 3.11.2.final.0" from pyvenv.cfg.
std::string version_in_environment(const std::string& directory) {
  std::ifstream file(directory + "/pyvenv.cfg");
  std::string line;
  // A real pyvenv.cfg has about five lines.
  for (int count = 0; count < 100 && std::getline(file, line); ++count) {
    if (!line.starts_with("version")) continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::size_t begin = line.find_first_of("0123456789", equals);
    if (begin == std::string::npos) continue;
    std::string version = line.substr(begin, line.find_first_not_of("0123456789.", begin) - begin);
    while (version.ends_with('.')) version.pop_back();
    return version;
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_not_of('/') == std::string::npos
                                ? 0
                                : path.rfind('/', path.find_last_not_of('/'));
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

// Returns the nearest existing folder above this path.
std::string existing_folder(const std::string& path) {
  std::string folder = folder_of(path);
  while (folder != "/" && access(folder.c_str(), F_OK) != 0) folder = folder_of(folder);
  return folder;
}

// Reads a folder, which makes a network file system refresh its cached entries from the server.
void list_folder(const std::string& path) {
  const OpenDirectory directory(opendir(path.c_str()));
  if (directory) readdir(directory.get());
}

// Returns the path that does not exist: the working directory, a script, or a program given by its
// path. Returns an empty string if all of them exist.
std::string missing_path(const ProgramRequest& request, const ProgramFacts& facts) {
  if (access(request.working_directory.c_str(), F_OK) != 0 && errno == ENOENT)
    return request.working_directory;
  return facts.error_number == ENOENT ? facts.path : "";
}

ProgramFacts inspect_program(const ProgramRequest& request) {
  ProgramFacts facts;
  facts.search_path = request.search_path;
  if (facts.search_path.empty()) {
    const char* own = std::getenv("PATH");
    facts.search_path = own != nullptr && *own != '\0' ? own : kDefaultSearchPath;
  }
  facts.working_directory_error = check_directory(request.working_directory);
  const bool is_module = request.form == PROGRAM_MODULE;
  facts.is_script = request.form == PROGRAM_SCRIPT ||
                    (request.form == PROGRAM_AUTO && is_python_file(request.program));
  if (facts.is_script || is_module) find_interpreter(request, facts);
  if (is_module) return facts;
  if (facts.is_script) {
    facts.path = absolute_path(request.program, request.working_directory);
    check_script(request.program, facts);
  } else {
    check_executable(request, facts);
  }
  return facts;
}

}  // namespace

bool is_on_network_file_system(const std::string& path) {
  // NFS, SMB, CIFS, Lustre, GPFS, BeeGFS, FUSE (sshfs and many cluster file systems), Ceph, AFS,
  // OrangeFS, 9p.
  constexpr std::array<std::uint32_t, 12> kNetworks = {
      0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x0bd00bd0, 0x47504653,
      0x19830326, 0x65735546, 0x00c36400, 0x5346414f, 0x20030528, 0x01021997};
  struct statfs info {};
  if (statfs(path.c_str(), &info) != 0) return false;
  return std::find(kNetworks.begin(), kNetworks.end(), static_cast<std::uint32_t>(info.f_type)) !=
         kNetworks.end();
}

std::string python_version(const std::string& interpreter) {
  const std::size_t bin = interpreter.rfind('/');
  if (bin != std::string::npos && bin > 0) {
    const std::size_t top = interpreter.rfind('/', bin - 1);
    if (top != std::string::npos) {
      std::string version = version_in_environment(interpreter.substr(0, top));
      if (!version.empty()) return version;
    }
  }
  char resolved[PATH_MAX];
  if (realpath(interpreter.c_str(), resolved) == nullptr) return {};
  const std::string_view path(resolved);
  return version_in_name(path.substr(path.rfind('/') + 1));
}

ProgramFacts check_program(const ProgramRequest& request) {
  constexpr std::chrono::milliseconds kPause{250};
  using Clock = std::chrono::steady_clock;
  const std::string folder =
      existing_folder(absolute_path(request.program, request.working_directory));
  if (request.retry_time.count() > 0 && request.is_on_network(folder)) list_folder(folder);
  ProgramFacts facts = inspect_program(request);
  const Clock::time_point until = Clock::now() + request.retry_time;
  bool has_waited = false;
  for (; Clock::now() < until; facts = inspect_program(request)) {
    const std::string missing = missing_path(request, facts);
    if (missing.empty() || !request.is_on_network(existing_folder(missing))) return facts;
    if (!std::exchange(has_waited, true) && request.on_wait) request.on_wait(missing);
    std::this_thread::sleep_for(kPause);
    list_folder(existing_folder(missing));
  }
  const std::string missing = missing_path(request, facts);
  if (!has_waited || missing.empty()) return facts;
  const std::string waited = " (retried for " + std::to_string(request.retry_time.count() / 1000) +
                             " s: a network file system may show new files late)";
  if (missing == request.working_directory && !facts.working_directory_error.empty())
    facts.working_directory_error += waited;
  // Advice remains at the end, where the launcher expects it.
  if (facts.error_number == ENOENT && !facts.path.empty() && !facts.error_has_advice)
    facts.error += waited;
  return facts;
}

void add_program_facts(const Hello& hello, std::chrono::milliseconds retry_time,
                       std::function<void(const std::string& path)> on_wait, HostFacts& facts) {
  ProgramRequest request;
  request.retry_time = retry_time;
  request.on_wait = std::move(on_wait);
  request.program = hello.program();
  request.form = hello.program_form();
  request.interpreters.assign(hello.interpreters().begin(), hello.interpreters().end());
  request.search_path = hello.search_path();
  request.working_directory = hello.working_directory();
  const ProgramFacts program = check_program(request);
  facts.set_working_directory_error(program.working_directory_error);
  facts.set_program_path(program.path);
  facts.set_program_error(program.error);
  facts.set_program_errno(program.error_number);
  facts.set_program_library(program.mpi_libraries);
  facts.set_program_sha256(program.sha256);
  facts.set_program_first_line(program.shebang);
  facts.set_program_is_script(program.is_script);
  facts.set_interpreter(program.interpreter);
  facts.set_interpreter_version(program.interpreter_version);
  facts.set_interpreter_error(program.interpreter_error);
  facts.set_search_path(program.search_path);
}

}  // namespace ivy
