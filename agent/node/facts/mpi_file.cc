// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/mpi_file.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "agent/node/facts/elf_libraries.h"
#include "proto/contract/mpi_library.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxMapsBytes = 8u << 20;
constexpr std::size_t kMaxVersionBytes = 24;

struct Maker {
  std::string_view mark;  // Contained in each of its libraries.
  std::string_view name;
  int first_major;  // Lower numbers are versions of other libraries that it contains.
};

// The first match counts, because Intel MPI and MVAPICH are based on MPICH. MVAPICH's version is
// left out: it cannot be distinguished from the version of its MPICH.
constexpr int kNoVersion = 1 << 30;
constexpr Maker kMakers[] = {
    {"Intel(R) MPI Library", "Intel MPI", 2017},
    {"MVAPICH", "MVAPICH", kNoVersion},
    {"MPICH Version", "MPICH", 3},
    {"Open MPI v", "Open MPI", 3},
};

// Returns the first number of "5.0.11"; nothing if the text is not three numbers separated by dots.
std::optional<int> major_of(std::string_view text) {
  std::string_view rest = text;
  const std::optional<int> major = to_number<int>(take_part(rest, '.'));
  const std::optional<int> minor = to_number<int>(take_part(rest, '.'));
  return minor && to_number<int>(rest) ? major : std::nullopt;
}

// Returns the only version among the texts; empty if there is none or several.
std::string only_version(std::string_view constants, int first_major) {
  std::string found;
  while (!constants.empty()) {
    const std::string_view text = take_part(constants, '\0');
    if (text.size() < 5 || text.size() > kMaxVersionBytes || text[0] < '0' || text[0] > '9')
      continue;
    const std::optional<int> major = major_of(text);
    if (!major || *major < first_major || text == found) continue;
    if (!found.empty()) return {};
    found = text;
  }
  return found;
}

}  // namespace

std::string mpi_text(std::string_view constants) {
  for (const Maker& maker : kMakers) {
    if (constants.find(maker.mark) == std::string_view::npos) continue;
    const std::string version = only_version(constants, maker.first_major);
    return std::string(maker.name) + (version.empty() ? "" : " ") + version;
  }
  return {};
}

std::string mpi_text_of_file(const std::string& path) { return mpi_text(file_constants(path)); }

std::vector<std::string> mapped_mpi_libraries(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  const std::string maps = read_file(process + "/maps", kMaxMapsBytes).value_or("");
  std::vector<std::string> paths;
  std::string_view rest = maps;
  while (!rest.empty()) {
    const std::string_view line = take_part(rest, '\n');
    const std::size_t begin = line.find('/');
    if (begin == std::string_view::npos) continue;
    const std::string_view path = line.substr(begin);
    const MpiFamily family = mpi_family(path.substr(path.rfind('/') + 1));
    if (family == MpiFamily::kNone) continue;
    // The path in the process's own view of the files, which may be a container's.
    std::string seen = process + "/root" + std::string(path);
    if (std::find(paths.begin(), paths.end(), seen) == paths.end()) paths.push_back(seen);
  }
  return paths;
}

}  // namespace ivy
