// SPDX-License-Identifier: Apache-2.0
// Reads and writes whole files. Failed calls leave the reason in errno. Thread: any; blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Returns the working directory as the shell names it: $PWD if it is this directory, because that
// path also exists on hosts where an automounter or a link leads elsewhere; otherwise the physical
// path. Fails if the directory was deleted or its path cannot be read.
Result<std::string> current_directory();

// Returns the first `max_bytes` of a file, or nothing if it cannot be opened or read. `flags` are
// added to O_RDONLY | O_CLOEXEC for open(). To reject longer files, pass one byte more than the
// limit.
std::optional<std::string> read_file(const std::string& path, std::size_t max_bytes, int flags = 0);
// Returns up to `max_bytes` from the descriptor's current offset, or nothing if reading fails.
std::optional<std::string> read_from(int fd, std::size_t max_bytes);

// Reserves memory or disk space for a part of a file, whose bytes stay as they are. Unlike
// posix_fallocate(), continues after a signal. Returns 0 or an errno.
int reserve_space(int fd, std::uint64_t from, std::uint64_t bytes);

// Returns a directory's entries, sorted, without "." and "..". Returns an empty list if the
// directory cannot be read.
std::vector<std::string> names_in(const std::string& directory);

// Behaviour of write_all() if a non-blocking descriptor accepts no more bytes for now.
enum class WhenFull { kFail, kWait };
// Returns false if not all bytes were written.
bool write_all(int fd, std::string_view bytes, WhenFull when_full = WhenFull::kFail);

// With kSynced, the data is synced before the rename, so it survives a power failure.
enum class Durability { kWhileTheHostRuns, kSynced };
// Replaces a file atomically: writes PATH.new and renames it, or removes it and returns false on
// failure. Mode 0600.
bool write_whole(const std::string& path, std::string_view bytes,
                 Durability durability = Durability::kWhileTheHostRuns);
// Writes a file that a user names as a shell's `>` does: follows links, writes to devices,
// truncates an existing file. Returns false on failure, when the file may be incomplete.
bool overwrite(const std::string& path, std::string_view bytes);

}  // namespace ivy
