// SPDX-License-Identifier: Apache-2.0
// The files of --stage on one host. Below the root, which only its user may enter:
//
//   lock                 held shared while a job uses objects/, exclusively by evict()
//   objects/ab/cdef...   contents, named by their SHA-256. Written once, never changed
//   partial/HASH.HOST    the beginning of an object, kept when a transfer breaks
//   trees/NAME-JOB       the working directory of one job
//   trees/NAME-JOB.lock  held while the job runs
//
// A tree has its own copies of the objects (reflinks if the file system has them), because a worker
// that writes to a hard link would change the cache for all later jobs. A tree is filled under
// another name and then renamed, so it is never used half-filled. Earlier trees keep what their jobs
// have written until evict() removes them.
//
// Nothing is synced: an object that was written before the last boot is hashed again before its
// next use. Thread: any, one at a time; blocks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/trust/sha256.h"
#include "proto/wire/stage.pb.h"

namespace ivy::stage {

// Returns the root: --stage-to (`directory`, absolute or "~/x"), or the user's cache.
// FailedPrecondition if there is no home directory.
Result<std::string> cache_root(const std::string& directory, const std::string& home,
                               const std::string& xdg_cache_home);

// An object that is being received.
class IncomingObject {
 public:
  // Continues `path` after its first `from` bytes.
  static Result<IncomingObject> open(std::string path, std::uint64_t from);
  Result<void> write(std::string_view bytes);
  std::uint64_t size() const { return size_; }
  // Returns the hash of all its bytes.
  std::string digest() { return hash_.digest(); }
  const std::string& path() const { return path_; }

 private:
  IncomingObject(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Descriptor fd_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
};

class StageCache {
 public:
  // Creates the root and locks it.
  static Result<StageCache> open(std::string root, std::string host_name);

  // Returns true if the object is complete, and marks it as used.
  bool has(const StageObject& object);
  // Returns how many of its first bytes are here.
  std::uint64_t partial_bytes(const StageObject& object) const;
  Result<IncomingObject> begin(const StageObject& object, std::uint64_t from);
  // Checks the hash and keeps the object. DataLoss if the hash differs; the bytes are removed then.
  Result<void> finish(const StageObject& object, IncomingObject& incoming);

  // Bytes that a tree needs in addition to its objects: 0 with reflinks.
  std::uint64_t tree_bytes(const StageManifest& manifest);
  // Free bytes for this user.
  std::uint64_t free_bytes() const;
  // Makes trees/NAME and holds its lock. Returns the tree's path. All objects must be here.
  Result<std::string> make_tree(const std::string& name, const StageManifest& manifest);
  // Removes objects and trees that were not used for max_age_s, and the oldest ones beyond
  // max_bytes. Trees in use stay. Does nothing while another job uses the cache.
  void evict(std::uint64_t max_bytes, std::uint64_t max_age_s);

  const std::string& root() const { return root_; }

 private:
  StageCache(std::string root, std::string host_name, Descriptor lock);
  std::string object_path(const StageObject& object) const;
  std::string partial_path(const StageObject& object) const;
  bool clones();
  Result<void> fill(const std::string& tree, const StageManifest& manifest);
  Result<void> copy_object(const StageObject& object, const StageEntry& entry,
                           const std::string& path);

  std::string root_;
  std::string host_name_;
  Descriptor lock_;
  Descriptor tree_lock_;
  std::optional<bool> clones_;  // The file system shares blocks between files.
  std::int64_t boot_s_ = 0;     // Since 1970.
};

}  // namespace ivy::stage
