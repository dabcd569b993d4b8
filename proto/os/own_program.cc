#include "proto/os/own_program.h"

#include <linux/limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

namespace ivy {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";
// The kernel marks a removed file so.
constexpr std::string_view kRemoved = " (deleted)";
constexpr std::string_view kNodeProgram = "/ivy-node";

std::string read_own_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink(kOwnProgram, path, sizeof path);
  if (length <= 0 || static_cast<std::size_t>(length) == sizeof path) return "";
  return {path, static_cast<std::size_t>(length)};
}

// Its path, marked or not; empty when it cannot be told. Read once: each start asks several times,
// and what a fork of the launcher becomes knows it already.
const std::string& own_path() {
  static const std::string path = read_own_path();
  return path;
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string program_directory() {
  const std::string& program = own_path();
  struct stat info {};
  return stat(program.c_str(), &info) == 0 ? parent(program) : "";
}

std::string node_program() {
  std::string program = own_path();
  if (program.ends_with(kRemoved)) program.resize(program.size() - kRemoved.size());
  if (program.ends_with(kNodeProgram)) return kOwnProgram;
  return parent(program).append(kNodeProgram);
}

}  // namespace ivy
