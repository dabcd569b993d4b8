// SPDX-License-Identifier: Apache-2.0
// Changes files of a Python environment so that it works in another directory. Most of the result
// does not depend on that directory, so every host gets the same bytes, which it may have already
// (environment_files.h). Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy {

// The contents of pyvenv.cfg.
struct VenvConfig {
  std::string home;     // The directory of the base interpreter.
  std::string version;  // "3.11.2"; "3.11" if that is all.
  bool has_system_packages = false;
  bool is_by_uv = false;
};
VenvConfig parse_venv_config(std::string_view text);

// Returns "3.11" for "3.11.2".
std::string short_version(std::string_view version);

// A file whose first `skip` bytes are replaced by `head`.
struct NewHead {
  std::string head;
  std::uint64_t skip = 0;
};

// Longest beginning of a script that relocatable_script() reads.
inline constexpr std::size_t kHeadBytes = 4096;

// For a script whose first line runs an interpreter of PREFIX/bin: the same by means of /bin/sh,
// which finds that interpreter next to the script. `begin`: the first kHeadBytes of the file.
// Recognizes the form that pip and uv write for long paths as well. Nothing if the script needs no
// change.
std::optional<NewHead> relocatable_script(std::string_view begin, const std::string& prefix);

// The directories that matter for references from an environment to other directories.
struct StagedDirectories {
  std::string prefix;   // The environment.
  std::string site;     // Its site-packages.
  std::string project;  // The directory that is staged with it; empty if there is none.
};

// The result for references to directories: a .pth file, or an editable install.
struct References {
  std::string text;  // The new content of the .pth file; empty if nothing is left of it.
  // Directories of the project that the program imports from, relative to the project ("." is the
  // project itself).
  std::vector<std::string> imports;
  std::vector<std::string> outside;  // Directories that are not staged.
};
// Rewrites the lines of a .pth file. Lines with code stay as they are. Without a project, paths
// outside of the environment stay as well: then hosts need the same directories anyway.
References relocate_pth(std::string_view text, const StagedDirectories& directories);
// Analyses the module that setuptools writes for an editable install whose packages are not simply
// the contents of one directory (`__editable___NAME_finder.py`). If all packages are in the project
// under their own names, directories on Python's path have the same effect, and `text` is empty.
// Nothing if the module has no table of packages.
std::optional<References> relocate_editable_finder(std::string_view text,
                                                   const StagedDirectories& directories);

// Returns `path` relative to `directory`, if it is inside; "." if they are equal.
std::optional<std::string> path_inside(std::string_view path, std::string_view directory);

}  // namespace ivy
