// SPDX-License-Identifier: Apache-2.0
// Finds and hashes the files of --stage, and reads them while they are sent. Blocks: called in
// tasks of BlockingPool only. Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launcher/stage/stage_files.h"
#include "launcher/stage/stage_patterns.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/wire/stage_codec.h"

namespace ivy::stage {

struct ScanRequest {
  // --stage=DIR; empty: the git work tree of the working directory, or else the directory of the
  // program.
  std::string directory;
  std::vector<std::string> patterns;
  std::string working_directory;
  std::string program;
  std::uint64_t limit = 0;
  // --stage-venv: candidates for the interpreter; the first one is in the environment that is
  // staged. Empty without it. `limit` does not apply to the environment.
  std::vector<std::string> interpreters;
  Environment caller;
  // Counts files and bytes that were read, for callers that wait. May be null.
  std::shared_ptr<std::atomic<std::uint64_t>> progress;
};

// In a git work tree, lists the files that git does not ignore; elsewhere all, except for
// directories of version control, __pycache__ and virtual environments. Hashes them; the hashes of
// unchanged files are kept in the user's cache.
Result<SourceTree> scan(const ScanRequest& request);

// Returns the framed StageOrder messages of `count` blocks, compressed. FailedPrecondition if a
// file has changed since it was scanned.
Result<std::vector<std::string>> read_blocks(const std::vector<SourceFile>& sources,
                                             const BlockMap& blocks, std::uint64_t first,
                                             std::size_t count);

// Returns an error if the file has changed since it was scanned.
Result<void> check_unchanged(const SourceFile& file);

// Returns the framed StageOrder messages of the manifest.
std::vector<std::string> manifest_messages(const StageManifest& manifest);

}  // namespace ivy::stage
