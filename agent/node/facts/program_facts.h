// SPDX-License-Identifier: Apache-2.0
// This host's facts about the program of a job: whether it exists here, its hash, by which hosts
// compare scripts, and the interpreter that will run it. Reads files, starts nothing. Thread: any.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

// NFS, Lustre and the like cache missing names, and the file behind a name, for a while: a file
// that another host has just saved may be missing or old. False if the type is unknown.
bool is_on_network_file_system(const std::string& path);

struct ProgramRequest {
  std::string program;
  ProgramForm form = PROGRAM_AUTO;
  std::vector<std::string> interpreters;  // Candidates, in the order in which they are tried.
  std::string search_path;                // Empty: this process's own PATH.
  std::string working_directory;          // It is an absolute path.
  // How long to look again for a missing script, program or working directory if its folder is on a
  // network file system, and the function that is called with its path before that.
  std::chrono::milliseconds second_looks{0};
  std::function<void(const std::string& path)> awaits = nullptr;
  std::function<bool(const std::string& path)> is_on_network = is_on_network_file_system;
};

// The error_number of a program that begins with "#!" and the name of an interpreter that does not
// exist. (ENOENT is kept for the program itself; a text without "#!" is ENOEXEC.)
inline constexpr int kInterpreterMissing = ELIBACC;

// Larger scripts are not hashed: sha256 stays empty, and is then not compared.
inline constexpr std::uint64_t kMaxHashedBytes = 16u << 20;

struct ProgramFacts {
  std::string working_directory_error;
  std::string path;        // Absolute; empty for a module.
  std::string error;       // Empty: it can be run (a script: read).
  int error_number = 0;    // The errno that `error` is about.
  std::string library;     // Its MPI libraries, blank-separated (proto/contract/mpi_library.h).
  std::string sha256;      // 64 hexadecimal digits; scripts only.
  std::string first_line;  // The interpreter after "#!" in a script; empty: none.
  bool is_script = false;
  std::string interpreter;          // Absolute path; empty when none is needed or none was found.
  std::string interpreter_version;  // "3.11", "3.11.2" or empty: from its path or pyvenv.cfg.
  std::string interpreter_error;
  std::string search_path;
};

// Thread: one that may block.
ProgramFacts check_program(const ProgramRequest& request);

// Finds the version of a Python interpreter without running it: from pyvenv.cfg of its virtual
// environment, else from the name behind its links ("python3.11"). Empty when neither has it.
std::string python_version(const std::string& interpreter);

}  // namespace ivy
