// SPDX-License-Identifier: Apache-2.0
// The bundles of this host's user: ivy-node and its companions, one directory per build, shared
// with the SSH transport (launcher/links/README.md, "Remote command"). A directory is used if it
// belongs to our user, is not a link, has enough free space, and allows execution.
//
// Everything here may block on a file system: call it on a thread that may wait. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The hash in a bundle's directory: 24 to 64 lower-case hexadecimal digits.
bool is_bundle_name(std::string_view text);

struct BundleOffer {
  std::string bundle;
  std::string architecture;  // As `uname -m` prints it.
  std::string sha256;        // The hash of the tar, 64 hexadecimal digits.
  std::uint64_t bytes = 0;
};

class BundleCache {
 public:
  // `directories`: directories of bundles, best first; none needs to exist.
  explicit BundleCache(std::vector<std::string> directories);
  // Returns ivyrun's directory in $XDG_CACHE_HOME, or in $HOME/.cache if that variable is unset or
  // not an absolute path, as over SSH.
  static std::string default_directory(const Environment& environment);
  // Returns `best`, then /tmp/ivyrun-cache-UID and /dev/shm/ivyrun-cache-UID, as over SSH.
  static std::vector<std::string> directories_after(const std::string& best);

  // The directory that is searched first, for messages.
  const std::string& first_directory() const { return directories_.front(); }

  // Returns the directory that holds this build's ivy-node, or NotFound.
  Result<std::string> find(const std::string& bundle, const std::string& architecture) const;

  // A bundle that is being received. Leaves nothing behind if it is destroyed before the end.
  class Arrival {
   public:
    ~Arrival();
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    // DataLoss if more bytes arrive than announced; ResourceExhausted or Unavailable name the file.
    Result<void> take(std::string_view bytes);
    // Checks and unpacks it, runs `ivy-node --version` and renames it to its final name; if several
    // uploads finish at the same time, one wins. Returns the directory. The error names every
    // directory that was tried, and why it was rejected.
    Result<std::string> put();

   private:
    friend class BundleCache;
    Arrival(const BundleCache& cache, BundleOffer offer);
    Result<void> open_in(const std::string& parent);
    Result<std::string> put_in(const std::string& parent);

    const BundleCache& cache_;
    const BundleOffer offer_;
    std::string file_;  // For messages; the file is already unlinked.
    Descriptor fd_;
    std::uint64_t bytes_ = 0;
    struct Digest;
    std::unique_ptr<Digest> digest_;
  };
  // InvalidArgument for an invalid offer; else as Arrival::take. The cache outlives it.
  Result<std::unique_ptr<Arrival>> accept(const BundleOffer& offer) const;

 private:
  const std::vector<std::string> directories_;
};

}  // namespace ivy
