// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/host_health.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <optional>

#include "agent/node/hang/tool_run.h"
#include "proto/contract/status.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Limit of a C library's size, which is about 2 MiB.
constexpr std::size_t kMaxLibraryBytes = 8u << 20;
// Limit of the size of /proc/meminfo.
constexpr std::size_t kMaxMemoryFileBytes = 64u << 10;
// Time limit of the interpreter, which may have to be read from a network file system.
constexpr std::uint64_t kPythonLimitNs = 4'000'000'000;

// Returns the name and version of the host's C library, or an empty text. Reads the version from
// the library's file, because this program is linked statically.
std::string c_library(const std::string& architecture) {
  for (const std::string& folder : {"/lib/" + architecture + "-linux-gnu", std::string("/lib64"),
                                    std::string("/usr/lib64"), std::string("/usr/lib")})
    if (const auto file = read_file(folder + "/libc.so.6", kMaxLibraryBytes))
      if (std::string version = c_library_version(*file); !version.empty()) return version;
  const std::string musl = "/lib/ld-musl-" + architecture + ".so.1";
  return access(musl.c_str(), R_OK) == 0 ? "musl" : "";
}

// Returns the hard limit, up to which workers may raise the soft one; 0 if it is not known.
std::uint64_t limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_max == RLIM_INFINITY ? std::numeric_limits<std::uint64_t>::max()
                                         : limit.rlim_max;
}

void add_memory(HostCheckup& health) {
  const std::string text = read_file("/proc/meminfo", kMaxMemoryFileBytes).value_or("");
  const std::size_t at = text.find("MemAvailable:");
  if (at == std::string::npos) return;
  const std::vector<std::string_view> words = words_of(std::string_view(text).substr(at, 64));
  if (words.size() > 1)
    health.set_memory_free(to_number<std::uint64_t>(words[1]).value_or(0) * 1024);
}

constexpr std::string_view kAskPython =
#include "agent/node/supervisor/ask_python.py.inc"
    ;

// Runs ask_python.py with the host's interpreter. The first line of the output is Python's version.
// If there is a module, the last line is "found VERSION" or, as an error, the reason why it was not
// found. The lines between them are messages of the interpreter.
void ask_python(const std::string& module, HostFacts& facts, HostCheckup& health) {
  const auto deadline = static_cast<std::uint64_t>(monotonic_ns()) + kPythonLimitNs;
  const auto run = ToolRun::start({facts.interpreter(), "-c", std::string(kAskPython), module},
                                  environment_of(environ), deadline);
  if (!run.ok()) return health.set_module_error(run.error().message);
  while (!(*run)->advance(static_cast<std::uint64_t>(monotonic_ns()))) usleep(5'000);
  std::string_view output = (*run)->output();
  while (output.ends_with('\n')) output.remove_suffix(1);
  const std::string_view version = output.substr(0, output.find('\n'));
  if (version.find_first_not_of("0123456789.") == std::string_view::npos && !version.empty())
    facts.set_interpreter_version(std::string(version));
  if (module.empty()) return;
  const std::string last(output.substr(output.rfind('\n') + 1));
  constexpr std::string_view kFound = "found ";
  if (last.starts_with(kFound))
    health.set_module_version(last.substr(kFound.size()));
  else
    health.set_module_error((*run)->was_late() ? "the interpreter did not answer in 4 s" : last);
}

}  // namespace

void add_space(const std::string& directory, HostCheckup& health) {
  struct statvfs disk {};
  if (statvfs(directory.c_str(), &disk) == 0)
    health.set_disk_free(disk.f_bavail * disk.f_frsize);
  else
    health.set_disk_error(errno_error(Code::kNotFound, directory, errno).message);
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) != 0) return;
  health.set_shared_free(shared.f_bavail * shared.f_frsize);
  health.set_shared_size(shared.f_blocks * shared.f_frsize);
}

std::string c_library_version(const std::string& file) {
  constexpr std::string_view kMark = "release version ";
  const std::size_t name = file.find("GNU C Library");
  // In glibc's banner, the version follows the name within a few dozen bytes.
  const std::size_t at = name == std::string::npos ? name : file.find(kMark, name);
  if (at == std::string::npos || at - name > 256) return {};
  const std::size_t begin = at + kMark.size();
  std::string version = file.substr(begin, file.find_first_not_of("0123456789.", begin) - begin);
  while (version.ends_with('.')) version.pop_back();
  return version.empty() ? "" : "glibc " + version;
}

void examine_host(const Hello& hello, HostFacts& facts) {
  HostCheckup& health = *facts.mutable_health();
  health.set_c_library(c_library(facts.architecture()));
  utsname system{};
  uname(&system);
  health.set_kernel(system.release);
  add_space(hello.working_directory(), health);
  add_memory(health);
  health.set_locked_limit(limit_of(RLIMIT_MEMLOCK));
  health.set_files_limit(limit_of(RLIMIT_NOFILE));
  if (!facts.interpreter().empty()) ask_python(hello.module(), facts, health);
  health.set_wall_ms(wall_ms());
  health.set_sampled_ns(static_cast<std::uint64_t>(monotonic_ns()));
}

}  // namespace ivy
