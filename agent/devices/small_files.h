// SPDX-License-Identifier: Apache-2.0
// Reading of /proc and /sys by system calls: a host with many devices is asked at every start, and
// streams cost several times as much as what they read. Thread: any.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Whether a file in /dev may be used. A device cgroup (Slurm, containers) answers like missing
// rights.
enum class NodeState { kUsable, kAbsent, kForbidden };
// Checks the rights without opening: opening an NVIDIA device that is not in use initialises it,
// which takes a second and more. The kernel checks the device cgroup here, too.
NodeState node_state(const std::string& path);

// The first 64 KiB of a file; empty when it cannot be read.
std::string small_file(const std::string& path);
// Its first line, without blanks at either end.
std::string first_line(const std::string& path);
// The number in the file, or `otherwise` where there is none.
int number_in(const std::string& path, int otherwise);
// Returns the text after "name" and a colon or blanks, in a text of such lines; empty if there is
// no such line.
std::string value_after(const std::string& text, const std::string& name);
// The path with every link resolved; empty when it leads nowhere.
std::string resolved(const std::string& path);

bool is_all_digits(std::string_view text);
// The number behind a prefix: "gi7" and "gi" give 7; -1 when there is none.
int number_behind(std::string_view text, std::string_view prefix);

// The directory that tests use instead of "/": IVY_DEVICE_ROOT, from our own environment. Empty,
// which means "/", when this process has rights that its caller lacks (AT_SECURE).
std::string device_root();

}  // namespace ivy
