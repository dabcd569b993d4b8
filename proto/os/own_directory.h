// Directories that this user alone may enter, in places where others could have put something else
// under the name first. Their lock tells a later process whether their maker lives. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// A directory of this user with mode 0700, and no link to one: others say what is wrong. NotFound
// where there is nothing.
Result<void> check_own_directory(const std::string& path);
bool is_own_directory(const std::string& path);
// Makes it if nothing has that name, and checks it. Its parent has to be there.
Result<void> make_own_directory(const std::string& path);

// Holds the lock as long as it is open; none where another process holds it, or the directory goes
// meanwhile.
Descriptor lock_directory(const std::string& path);
// Removes the directories in `parent` whose names begin so and whose lock nobody holds: their
// makers are dead. Does nothing where `parent` is not this user's own.
void remove_unlocked(const std::string& parent, std::string_view prefix);
// False if the opened directory has been removed, even if a new one has its name.
bool is_still_there(int fd, const std::string& path);
// Makes a removed directory again, its parent too, and locks it. None if that is not possible, or
// another process has made it.
Descriptor make_again(const std::string& path);

}  // namespace ivy
