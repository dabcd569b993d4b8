// SPDX-License-Identifier: Apache-2.0
// Directories that are created for one server and removed with it. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Directories below the job's: one for libpmix, one for the session of the ranks.
class SessionFiles {
 public:
  // Creates JOBDIR/pmix/GENERATION, 0700; removes files of a previous server there.
  static Result<SessionFiles> make(const std::string& job_directory, std::uint32_t generation);
  SessionFiles(SessionFiles&& other) noexcept;
  SessionFiles& operator=(SessionFiles&&) = delete;
  ~SessionFiles();

  std::string server() const { return path_ + "/server"; }
  std::string session() const { return path_ + "/session"; }

 private:
  explicit SessionFiles(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The directory for the shared memory segments of one host's Open MPI ranks: a directory of this
// job in /dev/shm, instead of /dev/shm itself. The segments are removed with it, including those of
// killed ranks and those that Open MPI 5 forgets; and ranks of several simulated hosts do not use
// each other's, which Open MPI 4.1 names only by machine and local rank. Its creator holds a lock
// on it; if the creator was killed, the next server of this user removes it at its start.
class SegmentDirectory {
 public:
  // Creates BASE/ivyrun-UID/pmix-NAME; `base` is "/dev/shm" except in tests. If that cannot be
  // used (no such file system, or another user has created BASE/ivyrun-UID), the directory is
  // `otherwise`, which is not removed here.
  SegmentDirectory(const std::string& base, const std::string& name, std::string otherwise);
  ~SegmentDirectory();
  SegmentDirectory(const SegmentDirectory&) = delete;
  SegmentDirectory& operator=(const SegmentDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor lock_;  // Empty if the directory is `otherwise`.
};

}  // namespace ivy
