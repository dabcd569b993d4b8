// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/process_view.h"

#include <linux/limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxFileBytes = 16u << 10;
// A process may have more threads; only this many are examined.
constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxChannels = 4;
constexpr int kMaxShells = 8;
constexpr std::array<std::string_view, 8> kShells = {"sh",  "bash", "dash", "zsh",
                                                     "ksh", "fish", "tcsh", "csh"};

std::string proc_path(pid_t pid, const std::string& file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

std::string read_text(const std::string& path) {
  return read_file(path, kMaxFileBytes).value_or("");
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "0" means that the process does not wait, or that we lack permission to see the function.
std::string wait_channel(const std::string& path) {
  const std::string channel = first_line(read_text(path));
  return channel == "0" ? "" : channel;
}

// Returns the text of /proc/PID/status from the end of `name` on, or an empty, terminated text.
std::string_view field_of(const std::string& status, const char* name) {
  const std::size_t at = status.find(name);
  return at == std::string::npos ? "" : status.c_str() + at + std::strlen(name);
}

void read_status(pid_t pid, ProcessView& out) {
  const std::string status = read_text(proc_path(pid, "status"));
  const auto number = [&status](const char* name, int base) {
    return std::strtoull(field_of(status, name).data(), nullptr, base);
  };
  out.threads = static_cast<std::uint32_t>(number("\nThreads:", 10));
  out.caught_signals = number("\nSigCgt:", 16);
}

// Returns utime + stime: fields 14 and 15 of proc(5).
std::uint64_t read_cpu_ticks(pid_t pid) {
  const std::string text = read_text(proc_path(pid, "stat"));
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  unsigned long long user = 0;
  unsigned long long system = 0;
  const int fields =
      std::sscanf(text.c_str() + name_end + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system);
  return fields == 2 ? user + system : 0;
}

std::string waits_of_threads(pid_t pid) {
  const std::string tasks = proc_path(pid, "task");
  std::map<std::string, int> counts;
  std::size_t seen = 0;
  for (const std::string& name : names_in(tasks)) {
    if (++seen > kMaxThreads) break;
    const std::string channel = wait_channel(tasks + "/" + name + "/wchan");
    ++counts[channel.empty() ? "running" : channel];
  }
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (std::size_t i = 0; i < sorted.size() && i < kMaxChannels; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(sorted[i].second) + " " + sorted[i].first;
  return text;
}

std::string link_target(const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length <= 0 ? "" : std::string(target.data(), static_cast<std::size_t>(length));
}

bool is_shell(const ProcessStat& process) {
  return std::find(kShells.begin(), kShells.end(), process.name) != kShells.end();
}

}  // namespace

bool read_process_view(pid_t pid, ProcessView& out) {
  if (!read_process_stat(pid, out.stat) || has_ended(out.stat)) return false;
  read_status(pid, out);
  out.cpu_ticks = read_cpu_ticks(pid);
  out.waiting_in = wait_channel(thread_path(out.stat, "wchan"));
  out.system_call = first_line(read_text(thread_path(out.stat, "syscall")));
  if (out.system_call == "running") out.system_call.clear();
  out.kernel_stack = read_text(thread_path(out.stat, "stack"));
  if (out.threads > 1) out.threads_in = waits_of_threads(pid);
  return true;
}

std::optional<std::uint64_t> switches_of_sleeping_threads(pid_t pid) {
  const std::string tasks = proc_path(pid, "task");
  const std::vector<std::string> names = names_in(tasks);
  if (names.size() > kMaxThreads) return std::nullopt;
  std::uint64_t switches = 0;
  for (const std::string& name : names) {
    if (name == std::to_string(pid)) continue;
    const std::string status = read_text(tasks + "/" + name + "/status");
    if (field_of(status, "\nState:\t").starts_with('R')) return std::nullopt;
    for (const char* kind : {"\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:"})
      switches += std::strtoull(field_of(status, kind).data(), nullptr, 10);
  }
  return switches;
}

pid_t process_below_shells(pid_t pid, const std::vector<ProcessStat>& all) {
  for (int level = 0; level < kMaxShells; ++level) {
    const auto self = std::find_if(all.begin(), all.end(),
                                   [pid](const ProcessStat& other) { return other.pid == pid; });
    if (self == all.end() || !is_shell(*self)) return pid;
    const ProcessStat* oldest = nullptr;
    for (const ProcessStat& other : all) {
      if (other.parent != pid || has_ended(other)) continue;
      if (oldest == nullptr || other.start_time < oldest->start_time) oldest = &other;
    }
    if (oldest == nullptr) return pid;
    pid = oldest->pid;
  }
  return pid;
}

bool holds_open(pid_t pid, const std::string& path) {
  ProcessStat process;
  if (!read_process_stat(pid, process)) return false;
  const std::string folder = thread_path(process, "fd");
  const std::vector<std::string> names = names_in(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return link_target(folder + "/" + name) == path;
  });
}

bool runs_python(pid_t pid) {
  ProcessStat process;
  if (!read_process_stat(pid, process)) return false;
  const std::string program = link_target(thread_path(process, "exe"));
  const std::size_t slash = program.rfind('/');
  const std::string name = slash == std::string::npos ? program : program.substr(slash + 1);
  return name.starts_with("python") || name.starts_with("pypy");
}

}  // namespace ivy
