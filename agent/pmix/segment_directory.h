// SPDX-License-Identifier: Apache-2.0
// The directory for the shared memory segments of one host's Open MPI ranks: a directory of this
// job in /dev/shm, instead of /dev/shm itself. The segments are removed with it, including those of
// killed ranks and those that Open MPI 5 forgets; and ranks of several simulated hosts do not use
// each other's, which Open MPI 4.1 names only by machine and local rank.
//
// Thread: one. Its creator holds a lock on it; if the creator was killed, the next server of this
// user removes it at its start.
#pragma once

#include <string>

#include "proto/os/descriptor.h"

namespace ivy {

class SegmentDirectory {
 public:
  // Creates PLACE/ivyrun-UID/pmix-NAME; `place` is "/dev/shm" except in tests. If that cannot be
  // used (no such file system, or another user has created PLACE/ivyrun-UID), the directory is
  // `otherwise`, which is not removed here.
  SegmentDirectory(const std::string& place, const std::string& name, std::string otherwise);
  ~SegmentDirectory();
  SegmentDirectory(const SegmentDirectory&) = delete;
  SegmentDirectory& operator=(const SegmentDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor lock_;  // None: the directory is not ours.
};

}  // namespace ivy
