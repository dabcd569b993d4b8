// SPDX-License-Identifier: Apache-2.0
// Facts about the job's program on this host: whether it exists, the hash by which the hosts'
// scripts are compared, and the interpreter that will run it. Reads files but runs nothing. Thread:
// any.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

// NFS, Lustre and similar file systems cache missing names and file contents for a while, so a file
// that another host has just saved may be missing or outdated. Returns false if the type is
// unknown.
bool is_on_network_file_system(const std::string& path);

struct ProgramRequest {
  std::string program;
  ProgramForm form = PROGRAM_AUTO;
  std::vector<std::string> interpreters;  // Candidates, in the order in which to try them.
  std::string search_path;                // If empty, this process's PATH.
  std::string working_directory;          // Absolute.
  // How long to retry if a script, program or working directory is missing and its folder is on a
  // network file system; `awaits` is called with the path before the retries.
  std::chrono::milliseconds retry_time{0};
  std::function<void(const std::string& path)> awaits = nullptr;
  std::function<bool(const std::string& path)> is_on_network = is_on_network_file_system;
};

// The error_number if the program starts with "#!" and names an interpreter that does not exist.
// (ENOENT means that the program itself does not exist, ENOEXEC that a text has no "#!".)
inline constexpr int kInterpreterMissing = ELIBACC;

// Larger scripts are not hashed: sha256 remains empty and is not compared.
inline constexpr std::uint64_t kMaxHashedBytes = 16u << 20;

struct ProgramFacts {
  std::string working_directory_error;
  std::string path;        // Absolute; empty for a module.
  std::string error;       // Empty if it can be run (a script: read).
  int error_number = 0;    // The errno behind `error`.
  std::string library;     // Its MPI libraries, blank-separated (proto/contract/mpi_library.h).
  std::string sha256;      // 64 hexadecimal digits; scripts only.
  std::string first_line;  // The interpreter after "#!" in a script; empty if none.
  bool is_script = false;
  std::string interpreter;          // Absolute; empty if none is needed or none was found.
  std::string interpreter_version;  // "3.11", "3.11.2" or empty; from its path or pyvenv.cfg.
  std::string interpreter_error;
  std::string search_path;
};

// Thread: one that may block.
ProgramFacts check_program(const ProgramRequest& request);

// Determines the version of a Python interpreter without running it: from pyvenv.cfg of its virtual
// environment, or from the name to which its links resolve ("python3.11"). Empty if neither has it.
std::string python_version(const std::string& interpreter);

}  // namespace ivy
