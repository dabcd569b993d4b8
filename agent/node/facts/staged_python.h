// SPDX-License-Identifier: Apache-2.0
// Prepares a Python environment that was sent to this host (--stage-venv): links it to a Python of
// this host, or to one that was sent as well, and replaces the path that it had on the launcher's
// host. Called by the task that receives the files, which may block.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/wire/stage.pb.h"

namespace ivy {

// Replaces every occurrence of a path in a text.
std::string with_text_prefix(std::string text, std::string_view from, std::string_view to);

// Replaces a path in the strings of a program or library, which keep their length: they are shifted
// and filled with NUL, as conda does. Every string must have room for a path of
// `placeholder_length` bytes. Returns false, with `bytes` unchanged, if the new path is longer.
bool replace_binary_prefix(std::string& bytes, std::string_view from, std::string_view to,
                           std::size_t placeholder_length);

// Parameters for the search for a Python; for tests.
struct PythonSearch {
  std::string search_path;  // PATH.
  std::string home;         // HOME, for the Pythons that uv and pyenv have installed.
};
// Returns the directory with `python3.11` for version 3.11; empty if there is none. Checks
// `preferred` first.
std::string find_base_python(const std::string& version, const std::string& preferred,
                             const PythonSearch& search);

// Fails with kFailedPrecondition if the environment does not fit this host: another architecture,
// or no such Python. `has_python`: its Python is sent along.
Result<void> check_requirements(const StagedPython& requirements, bool has_python,
                                const PythonSearch& search);

// Makes a sent environment usable; does nothing if an earlier job has done so. Several jobs may
// call it for one directory concurrently: each file is replaced atomically, by the same bytes.
// Fails with kFailedPrecondition if the environment does not fit this host.
// `directory` is absolute and without links; `python`: the Python that was sent for it, or empty.
Result<void> prepare_environment(const std::string& directory, const std::string& python,
                                 const PythonSearch& search);

}  // namespace ivy
