// SPDX-License-Identifier: Apache-2.0
// Directories that only this user may enter, at locations where other users could have created
// something of the same name first. A lock on the directory tells later processes whether its
// creator is still running. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Checks that `path` is a directory of this user with mode 0700, and not a link. Fails with
// NotFound if nothing exists there; other errors say what is wrong.
Result<void> check_own_directory(const std::string& path);
bool is_own_directory(const std::string& path);
// Creates the directory if nothing has that name, and checks it. Its parent must exist.
Result<void> make_own_directory(const std::string& path);

// Takes the directory's lock, which is held while the descriptor is open. Returns an empty
// descriptor if another process holds it, or if the directory is removed concurrently.
Descriptor lock_directory(const std::string& path);
// Removes the directories in `parent` whose names start with `prefix` and whose lock no process
// holds: their creators have exited. Does nothing if `parent` is not this user's own.
void remove_unlocked(const std::string& parent, std::string_view prefix);
// Returns false if the opened directory has been removed, even if a new one has its name.
bool still_exists(int fd, const std::string& path);
// Creates a removed directory again, with its parent, and locks it. Returns an empty descriptor if
// that is not possible, or if another process has locked it first.
Descriptor make_again(const std::string& path);

}  // namespace ivy
