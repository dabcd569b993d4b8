// SPDX-License-Identifier: Apache-2.0
// The files of --stage, as values: their checks, the manifest, and where the working directory and
// the program are in the tree. Pure; thread: any.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/stage.pb.h"

namespace ivy::stage {

// Returns a time of stat(2) in nanoseconds since 1970.
inline std::int64_t file_time_ns(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// One file, symbolic link or directory to stage.
struct SourceFile {
  std::string path;        // In the tree, relative.
  std::string file;        // On this machine, absolute.
  std::uint32_t mode = 0;  // st_mode
  std::uint64_t size = 0;  // A file's bytes.
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::uint64_t inode = 0;
  std::string link = {};    // A link's target.
  std::string sha256 = {};  // A file's hash, 32 bytes.
};

// Everything that is staged.
struct SourceTree {
  std::string root;  // The staged directory, absolute.
  std::vector<SourceFile> files;
  std::vector<std::string> notes;  // For the user.
  // --stage-venv: the environment's parts, which jobs do not change, and the directories of the
  // tree that editable installs import from.
  std::vector<StageShared> shared;
  std::vector<std::string> imports;
  StagedPython requirements;
};

// "1.5 GiB", "37 MiB", "812 B".
std::string size_text(std::uint64_t bytes);
// "1,204 files, 812 MiB".
std::string files_text(std::size_t files, std::uint64_t bytes);

std::uint64_t total_bytes(const std::vector<SourceFile>& files);
std::size_t count_files(const std::vector<SourceFile>& files);

// Rejects paths that are not UTF-8, links that leave the tree, and more than `limit` bytes.
Result<void> check_files(const std::vector<SourceFile>& files, const std::string& root,
                         std::uint64_t limit);

// Returns true if the target of a link at `path` stays in the tree.
bool link_stays_inside(const std::string& path, const std::string& target);

// The manifest, and for each of its objects a file with this content.
struct Manifest {
  StageManifest message;
  std::vector<SourceFile> sources;
};
Manifest make_manifest(const std::vector<SourceFile>& files);

// Returns the part of `path` below `root`: "" for the root itself, nothing if it is elsewhere. Both
// are absolute.
bool is_below(const std::string& path, const std::string& root, std::string& rest);

// The working directory on a host, for a tree there: the same directory in the tree as the user's
// own, or the tree itself if the user's is elsewhere.
std::string staged_directory(const std::string& root, const std::string& working_directory,
                             const std::string& tree);
// The program as a host finds it from its working directory: a path into the root becomes relative.
std::string staged_program(const std::string& root, const std::string& working_directory,
                           const std::string& program);

// "proj-0123abcd": the name of a job's tree.
std::string tree_name(const std::string& root, const std::string& job_id);

}  // namespace ivy::stage
