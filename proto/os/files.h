// Whole files, read and written. Where a call fails, errno says why. Thread: any; blocks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Returns the working directory as the shell names it: $PWD if that is this directory, so that the
// path also exists on hosts where an automounter or a link leads elsewhere; else the physical path.
// Fails if the directory was deleted or its path cannot be read.
Result<std::string> current_directory();

// The first `max_bytes` of a file; nothing when it cannot be opened or read. `flags` are those of
// open() beside O_RDONLY and O_CLOEXEC. To refuse a longer file, ask for a byte more than it may
// have.
std::optional<std::string> read_file(const std::string& path, std::size_t max_bytes, int flags = 0);
// The same for a descriptor, from its offset.
std::optional<std::string> read_from(int fd, std::size_t max_bytes);

// What a directory holds, sorted, without "." and ".."; nothing where it cannot be read.
std::vector<std::string> names_in(const std::string& directory);

// What write_all() does when a descriptor that never blocks takes no more for now.
enum class WhenFull { kFail, kWait };
bool write_all(int fd, std::string_view bytes, WhenFull when_full = WhenFull::kFail);

// What must outlive a power failure is synced before the file gets its name.
enum class Durability { kWhileTheHostRuns, kSynced };
// Replaces a file as a whole: PATH.new is written and renamed, or removed again. Mode 0600.
bool write_whole(const std::string& path, std::string_view bytes,
                 Durability durability = Durability::kWhileTheHostRuns);
// Writes as a shell's `>` does: through links and into devices, and truncates an existing file. For
// files that a user names.
bool overwrite(const std::string& path, std::string_view bytes);

}  // namespace ivy
