// SPDX-License-Identifier: Apache-2.0
// The directories of one user on one host, and the names of jobs in them. Launchers, supervisors,
// agents and ivyctl find each other only through these directories. Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

inline constexpr std::size_t kJobIdDigits = 32;
// Returns whether the text is 32 lower-case hexadecimal digits, which are safe as part of a path.
bool is_job_id(std::string_view text);

// Returns the directory of last resort: /tmp/ivyrun-UID.
std::string ivyrun_tmp_directory(std::uint32_t uid);
// Returns $XDG_RUNTIME_DIR/ivyrun, or an empty path if the variable is unset (null) or not an
// absolute path.
std::string ivyrun_runtime_directory(const char* xdg_runtime_dir);

// Returns the parents of jobs' directories, in order of preference: in /tmp, in /dev/shm, in the
// runtime directory. A supervisor's directory in them is JOBID-HOST, a launcher's JOBID. In a user
// namespace the first names may belong to the user who has this uid outside (usually root), so the
// last one is named after both uids.
std::vector<std::string> job_parents(std::uint32_t uid, std::uint32_t uid_outside,
                                     const char* xdg_runtime_dir);
// Returns the parents for this process.
std::vector<std::string> job_parents();
// Returns the uid outside this user namespace to which `uid` maps, according to the text of its
// uid_map, or `uid` itself if it is not mapped. Pure.
std::uint32_t uid_outside(std::uint32_t uid, std::string_view uid_map);

// Writes the time from TERM to KILL for a supervisor that is stopped by SIGTERM, in milliseconds,
// to a file of its job's directory. The supervisor calls this with the job's own time. Returns
// false on failure.
bool write_stop_grace(const std::string& job_directory, std::chrono::milliseconds grace);
// Returns nothing if there is no such file, or if it has no number.
std::optional<std::chrono::milliseconds> read_stop_grace(const std::string& job_directory);
// Changes the time before SIGTERM is sent; for other processes of this user. Returns false if the
// job's supervisor has written no file; it is then an older version, which uses its own time.
bool change_stop_grace(const std::string& job_directory, std::chrono::milliseconds grace);
// Call before SIGTERM is sent to stop the job: without it, a supervisor takes the signal for a
// warning that its host will be stopped, and its workers run on for a while.
void mark_stop(const std::string& job_directory);
bool is_stop_marked(const std::string& job_directory);

}  // namespace ivy
