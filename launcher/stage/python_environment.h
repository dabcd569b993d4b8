// SPDX-License-Identifier: Apache-2.0
// --stage-venv: finds the Python environment of the program, and lists what is sent of it. Reads
// the file system of this host. Thread: one that may block.
//
// Scripts and .pth files are changed here so that they work in any directory. The rest depends on
// the host and is done there (agent/node/facts/staged_python.h), by a description of the
// environment that travels as one of its files. Bytecode in __pycache__ is sent as well: it stays
// valid, because files keep their times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/stage/relocation.h"
#include "launcher/stage/stage_files.h"
#include "proto/contract/status.h"
#include "proto/wire/stage.pb.h"

namespace ivy {

enum class EnvironmentKind : std::uint8_t {
  kVenv,          // Of venv, virtualenv or uv. Its Python is elsewhere.
  kConda,         // Contains its Python.
  kInstallation,  // A Python that uv has installed.
};

struct PythonEnvironment {
  EnvironmentKind kind = EnvironmentKind::kVenv;
  std::string prefix;  // "/home/me/project/.venv"
  std::string site;    // "lib/python3.11/site-packages", in it.
  VenvConfig config;   // Only the version for conda, whose environments contain their Python.
  // The directory of a Python that uv has installed. It works in any directory, so it is sent along
  // if this environment needs it. Empty for any other Python, which must exist on the hosts.
  std::string managed_python;
};

// Returns the environment to which an interpreter belongs ("/home/me/.venv/bin/python"), or an
// empty string if it is not in one.
std::string environment_of_interpreter(const std::string& interpreter);

// Fails with kInvalidArgument if the directory is not an environment, and with kFailedPrecondition
// if its interpreter no longer exists. Both have a fix.
Result<PythonEnvironment> read_python_environment(const std::string& prefix);

// The paths of an environment and of its Python in the staged tree. Hosts keep each as a separate
// tree (StageShared).
inline constexpr std::string_view kEnvironmentPart = ".ivyrun/venv";
inline constexpr std::string_view kPythonPart = ".ivyrun/python";

struct EnvironmentFiles {
  // Without hashes. Of each part, directories first, then small files first.
  std::vector<stage::SourceFile> files;
  // Directories of the project for PYTHONPATH, relative to it.
  std::vector<std::string> imports;
  std::vector<std::string> notes;  // For the user.
  StagedPython requirements;       // What a host needs, without lists of files.
};

// Lists the environment, and the Python of uv that it needs. `project`: the directory that is
// staged as well. `made`: an existing directory for changed files, which later calls use again.
// Fails with kFailedPrecondition if a package is an editable install of a directory outside of the
// project, naming both.
Result<EnvironmentFiles> list_environment(const PythonEnvironment& environment,
                                          const std::string& project, const std::string& made);

// Returns the shared part of a tree whose files have hashes. Its name depends on their paths,
// contents, modes and times.
StageShared shared_part(const std::vector<stage::SourceFile>& files, std::string_view part);

}  // namespace ivy
