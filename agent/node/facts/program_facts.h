// SPDX-License-Identifier: Apache-2.0
// Facts about the job's program on this host: whether it exists, the hash by which the hosts'
// scripts are compared, and the interpreter that will run it. Reads files but runs nothing. Thread:
// one that may block.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

// Returns true for NFS, Lustre and similar file systems. They cache missing names and file contents
// for a while, so a file that another host has just saved may be missing or outdated. Returns false
// if the type cannot be determined.
bool is_on_network_file_system(const std::string& path);

struct ProgramRequest {
  std::string program;
  ProgramForm form = PROGRAM_AUTO;
  std::vector<std::string> interpreters;  // Candidates, in the order in which to try them.
  std::string search_path;                // If empty, this process's PATH.
  std::string working_directory;          // Absolute.
  // How long to retry if a script, program or working directory is missing and its folder is on a
  // network file system. `on_wait` is called once, with the missing path, before the first retry.
  std::chrono::milliseconds retry_time{0};
  std::function<void(const std::string& path)> on_wait = nullptr;
  std::function<bool(const std::string& path)> is_on_network = is_on_network_file_system;
};

// The error_number of a program whose "#!" names an interpreter that does not exist. ENOENT means
// that the program itself does not exist, ENOEXEC that it is a text without "#!".
inline constexpr int kInterpreterMissing = ELIBACC;

// Larger scripts are not hashed: sha256 remains empty and is not compared.
inline constexpr std::uint64_t kMaxHashedBytes = 16u << 20;

// The three errors are found independently, and each is empty if its check passed. A missing
// working directory usually causes the other two, so it is the one to report. `error` and
// `interpreter_error` may end with advice, ": write TEXT", which the launcher shows separately.
struct ProgramFacts {
  std::string working_directory_error;
  std::string path;      // Absolute; empty for a module, or a name not found in PATH.
  std::string error;     // Why the program cannot be executed or, if a script, read.
  int error_number = 0;  // The errno behind `error`.
  bool error_has_advice = false;
  std::string mpi_libraries;        // Separated by blanks (proto/contract/mpi_library.h).
  std::string sha256;               // 64 hexadecimal digits; scripts only.
  std::string shebang;              // The text after "#!" in a script's first line; empty if none.
  bool is_script = false;           // An interpreter that is not named by "#!" runs it.
  std::string interpreter;          // Absolute; empty if none is needed or none was found.
  std::string interpreter_version;  // "3.11", "3.11.2" or empty; from its path or pyvenv.cfg.
  std::string interpreter_error;
  std::string search_path;  // The PATH that was searched.
};

ProgramFacts check_program(const ProgramRequest& request);

// Checks the program of a Hello. `retry_time` and `on_wait` are those of ProgramRequest.
void add_program_facts(const Hello& hello, std::chrono::milliseconds retry_time,
                       std::function<void(const std::string& path)> on_wait, HostFacts& facts);

// Determines the version of a Python interpreter without running it: from pyvenv.cfg of its virtual
// environment, or from the name to which its links resolve ("python3.11"). Empty if neither has it.
std::string python_version(const std::string& interpreter);

}  // namespace ivy
