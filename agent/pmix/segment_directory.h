// Where Open MPI's ranks of one host keep their segments of shared memory: a directory of this job
// in /dev/shm, instead of /dev/shm itself. They are removed with it, also those of ranks that were
// killed and those that Open MPI 5 forgets; and ranks of several pretended hosts do not take each
// other's, which Open MPI 4.1 names by machine and local rank alone.
//
// Thread: one. Its maker holds a lock on it; one whose maker was killed is removed by the next
// server of this user that starts.
#pragma once

#include <string>

#include "proto/os/descriptor.h"

namespace ivy {

class SegmentDirectory {
 public:
  // In `place`, "/dev/shm" but in tests; it is at PLACE/ivyrun-UID/pmix-NAME. Where that cannot be
  // used (there is no such file system, or another user has made PLACE/ivyrun-UID) the directory
  // is `otherwise`, which is not removed here.
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
