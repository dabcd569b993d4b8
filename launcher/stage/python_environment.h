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
#include <vector>

#include "launcher/stage/relocation.h"
#include "proto/contract/status.h"

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

// One entry of what is sent. A file's content is `head` and the bytes of `source` from `skip` on.
struct EnvironmentFile {
  std::string path;  // In the environment.
  std::uint32_t mode = 0;
  std::string link;    // The target of a symbolic link; empty for a file.
  std::string source;  // Empty if `head` is the whole content.
  std::string head;
  std::uint64_t skip = 0;
  std::uint64_t size = 0;  // Of the content.
};

struct EnvironmentFiles {
  std::vector<EnvironmentFile> files;  // Small ones first.
  // Directories of the project for PYTHONPATH, relative to it.
  std::vector<std::string> imports;
};

// The name of the description in the tree: a serialized StagedPython (job.proto).
inline constexpr const char* kEnvironmentDescription = ".ivyrun-environment";

// `project`: the directory that is staged as well, or empty. Fails with kFailedPrecondition if a
// package is an editable install of a directory outside of the project, naming both.
Result<EnvironmentFiles> list_environment(const PythonEnvironment& environment,
                                          const std::string& project);

// Lists a Python that uv has installed.
Result<EnvironmentFiles> list_managed_python(const std::string& directory);

}  // namespace ivy
