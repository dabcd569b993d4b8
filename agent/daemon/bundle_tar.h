// Reads the tar of a bundle: regular files with plain names in one directory, nothing else. What a
// tar can say beyond that (links, directories, devices, owners, paths) is refused, not skipped, so
// that nothing is ever written outside the directory it is for. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/status.h"

namespace ivy {

inline constexpr std::size_t kTarBlockBytes = 512;
inline constexpr std::size_t kMaxBundleFiles = 64;
inline constexpr std::uint64_t kMaxBundleBytes = 256u << 20;

struct TarEntry {
  std::string name;  // Letters, digits, '.', '_', '-'; does not begin with '.' or '-'.
  std::uint64_t bytes = 0;
  bool is_executable = false;
};

// One header block. Nothing: a block of zeros, which ends the archive. DataLoss: damaged, or
// something that we do not take. Pure.
Result<std::optional<TarEntry>> parse_tar_header(std::string_view block);

// Writes the files of an archive into an existing directory, 0700 or 0600. ResourceExhausted when
// there is no room, DataLoss when the archive is not what it should be.
Result<void> unpack_bundle(int tar_fd, const std::string& directory);

}  // namespace ivy
