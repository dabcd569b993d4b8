// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/python_hook.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "agent/node/facts/own_package.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Collectives that the recorder keeps. torch's default is 2000; a dump of 1000, with the stacks of
// their calls, stays below 1 MiB.
constexpr const char* kFlightEntries = "1000";

// The build generates a raw string from sitecustomize.py.
constexpr std::string_view kHook =
#include "agent/node/workers/sitecustomize.py.inc"
    ;

bool is_set(const Environment& environment, const char* name) {
  return find_variable(environment, name) != nullptr;
}

Result<void> write_file(const std::string& path, std::string_view text) {
  // Written atomically: half a file would be a syntax error in every worker.
  if (write_whole(path, text)) return {};
  return errno_error(Code::kUnavailable, path, errno);
}

void add_nccl_variables(Environment& environment, const JobDirectory& directory,
                        std::uint32_t generation) {
  if (is_set(environment, "NCCL_DEBUG") || is_set(environment, "NCCL_DEBUG_FILE")) return;
  set_variable(environment, "NCCL_DEBUG", "WARN");
  set_variable(environment, "NCCL_DEBUG_FILE",
               directory.path + "/nccl-" + std::to_string(generation) + "-%p");
}

}  // namespace

bool add_python_hook(Environment& environment, const std::string& installed,
                     const JobDirectory& directory) {
  if (!installed.empty()) {
    append_package(environment, installed);
    return true;
  }
  const std::string folder = directory.path + "/python";
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return false;
  if (!write_file(folder + "/sitecustomize.py", kHook).ok()) return false;
  append_package(environment, folder);
  return true;
}

void write_rank_hosts(const HostPlan& plan, const JobDirectory& directory) {
  std::string text;
  for (const HostShare& host : plan.hosts())
    text += host.name() + " " + std::to_string(host.ranks()) + "\n";
  (void)write_file(directory.path + "/hosts", text);
}

std::string stack_file(const JobDirectory& directory, std::uint32_t generation,
                       std::uint32_t rank) {
  return directory.path + "/stack-" + std::to_string(generation) + "-" + std::to_string(rank);
}

std::string flight_socket(const std::string& stack_file) { return stack_file + ".torch"; }

void add_evidence_variables(Environment& environment, const JobDirectory& directory,
                            std::uint32_t generation) {
  if (!is_set(environment, "TORCH_FR_BUFFER_SIZE") &&
      !is_set(environment, "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    set_variable(environment, "TORCH_FR_BUFFER_SIZE", kFlightEntries);
  add_nccl_variables(environment, directory, generation);
}

void add_nccl_profiler(Environment& environment, const std::string& plugin) {
  const std::string* choice = find_variable(environment, "IVY_NCCL_PROFILER");
  const bool is_off = choice != nullptr && *choice == "off";
  // NCCL loads only one plug-in, and the user's has precedence.
  if (is_off || plugin.empty() || is_set(environment, "NCCL_PROFILER_PLUGIN")) return;
  set_variable(environment, "NCCL_PROFILER_PLUGIN", plugin);
}

std::string last_nccl_warning(const Environment& environment, pid_t pid) {
  constexpr off_t kTail = 16 << 10;
  constexpr std::size_t kLongest = 300;
  constexpr std::string_view kMark = "NCCL WARN ";
  constexpr std::string_view kPid = "%p";
  const std::string* pattern = find_variable(environment, "NCCL_DEBUG_FILE");
  if (pattern == nullptr || !pattern->ends_with(kPid)) return "";
  const std::string path = pattern->substr(0, pattern->size() - kPid.size()) + std::to_string(pid);
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return "";
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, kTail)), '\0');
  const ssize_t count = pread(fd.get(), text.data(), text.size(), std::max<off_t>(size - kTail, 0));
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::size_t at = text.rfind(kMark);
  if (at == std::string::npos) return "";
  text.erase(0, at + kMark.size());
  return text.substr(0, std::min(text.find('\n'), kLongest));
}

}  // namespace ivy
