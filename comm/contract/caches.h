// SPDX-License-Identifier: Apache-2.0
// The caches that ranks of one machine share, as far as thresholds depend on them. All ranks must
// use the same numbers: each rank reports its own at init, and all use the minimum.
//
// Pure except own_caches(). Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy::comm {

// A field that is 0 is unknown.
struct Caches {
  std::uint64_t last_bytes = 0;       // Size of one last-level cache.
  std::uint32_t last_processors = 0;  // Number of processors that share one.
  // True if a core reads a line that another core has written nearly as fast as a line of its own.
  // This holds if the last-level cache is shared by a few cores (AMD since Zen), not if a whole
  // socket shares one over a mesh.
  bool is_near = false;
  // Number of processors that the ranks of this machine may use together; no single rank knows it.
  std::uint32_t processors = 0;

  bool operator==(const Caches&) const = default;
};

// Returns the caches of the processors that this process may run on. `root`: prefix of file
// paths, for tests.
Caches own_caches(const std::string& root = "");

// Encodes caches as text, such as "33554432,8,near", and back. Malformed text parses as unknown
// values.
std::string caches_text(const Caches& caches);
Caches caches_from(const std::string& text);

// Returns the minimum over all ranks. A value that is unknown on one rank is unknown in the result.
Caches smallest_caches(const std::vector<Caches>& ranks);

// Returns the total size of the last-level caches that `ranks` ranks use if they are packed as
// closely as possible, one per processor as far as the number of processors is known.
std::uint64_t last_level_bytes(const Caches& caches, std::uint32_t ranks);

}  // namespace ivy::comm
