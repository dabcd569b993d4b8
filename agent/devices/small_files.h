// SPDX-License-Identifier: Apache-2.0
// Reads /proc and /sys with plain system calls. A host with many devices is read at every start,
// and streams cost several times as much as the reads themselves. Thread: any.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Whether a file in /dev may be used. Denial by a device cgroup (Slurm, containers) looks like
// missing permissions.
enum class NodeState { kUsable, kAbsent, kForbidden };
// Checks the permissions without opening the file: opening an idle NVIDIA device initializes it,
// which takes more than a second. The kernel also checks the device cgroup here.
NodeState node_state(const std::string& path);

// Returns the first 64 KiB of a file; empty if it cannot be read.
std::string small_file(const std::string& path);
// Returns the file's first line without surrounding blanks.
std::string first_line(const std::string& path);
// Returns the number in the file, or `otherwise` if it has none.
int number_in(const std::string& path, int otherwise);
// Returns the value of the line "NAME: value" or "NAME value" in `text`; empty if there is no such
// line.
std::string value_after(const std::string& text, const std::string& name);
// Resolves all links in the path; empty if the path does not exist.
std::string resolved(const std::string& path);

bool is_all_digits(std::string_view text);
// Returns the number after a prefix: 7 for "gi7" and "gi"; -1 if there is none.
int number_after(std::string_view text, std::string_view prefix);

// Returns the directory that tests use instead of "/": IVY_DEVICE_ROOT of this process's
// environment. Returns an empty string, meaning "/", if this process has rights that its caller
// lacks (AT_SECURE).
std::string device_root();

}  // namespace ivy
