// The directories of one user on one host, and the names of jobs in them: launchers, supervisors,
// agents and ivyctl find each other only through these. Thread: any; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

inline constexpr std::size_t kJobIdDigits = 32;
// 32 lower-case hexadecimal digits: safe as a part of a path.
bool is_job_id(std::string_view text);

// /tmp/ivyrun-UID
std::string place_in_tmp(std::uint32_t uid);
// $XDG_RUNTIME_DIR/ivyrun; empty when that is unset (null) or no absolute path.
std::string place_in_runtime_directory(const char* xdg_runtime_dir);

// Returns the parents of jobs' directories, of which the first usable one is used: in /tmp, in
// /dev/shm, in the runtime directory. JOBID-HOST in them is a supervisor's directory, JOBID a
// launcher's.
std::vector<std::string> job_parents(std::uint32_t uid, const char* xdg_runtime_dir);

}  // namespace ivy
