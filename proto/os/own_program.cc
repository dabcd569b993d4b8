// SPDX-License-Identifier: Apache-2.0
#include "proto/os/own_program.h"

#include <link.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

namespace ivy {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";
// The kernel appends this to the path of a removed file.
constexpr std::string_view kRemoved = " (deleted)";
constexpr std::string_view kNodeProgram = "/ivy-node";

std::string read_own_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink(kOwnProgram, path, sizeof path);
  if (length <= 0 || static_cast<std::size_t>(length) == sizeof path) return "";
  return {path, static_cast<std::size_t>(length)};
}

// Returns the path of this program, possibly with kRemoved, or an empty path if it is unknown. Read
// once, because each start needs it several times; forked processes inherit the result.
const std::string& own_path() {
  static const std::string path = read_own_path();
  return path;
}

// Sanitizers must not check this read: between variables it touches padding that belongs to none.
__attribute__((no_sanitize("address", "thread"))) void touch(const volatile char* byte) {
  (void)*byte;
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string program_directory() {
  const std::string& program = own_path();
  struct stat info {};
  return stat(program.c_str(), &info) == 0 ? parent(program) : "";
}

void read_own_program() {
  // A copy of ivyrun runs from the launcher's own location, and reading all of it, including gRPC,
  // would add 2 ms to each start.
  if (!read_own_path().ends_with(kNodeProgram)) return;
  constexpr std::size_t kPageBytes = 4096;  // The smallest page; larger ones are read repeatedly.
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void*) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_R) == 0) continue;
          const auto* begin =
              reinterpret_cast<const volatile char*>(info->dlpi_addr + segment.p_vaddr);
          for (std::size_t at = 0; at < segment.p_filesz; at += kPageBytes) touch(begin + at);
        }
        return 1;  // The first object is the program itself; the others are libraries.
      },
      nullptr);
}

std::string node_program() {
  std::string program = own_path();
  if (program.ends_with(kRemoved)) program.resize(program.size() - kRemoved.size());
  if (program.ends_with(kNodeProgram)) return kOwnProgram;
  return parent(program).append(kNodeProgram);
}

}  // namespace ivy
