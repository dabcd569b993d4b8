// The caches that ranks of one machine share, as far as thresholds depend on them. All ranks use
// the same numbers: each says its own at init, and the least of what all have said counts.
//
// Pure but for own_caches(). Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy::comm {

// A number that is 0 is not known.
struct Caches {
  std::uint64_t last_bytes = 0;       // The size of one cache of the last level.
  std::uint32_t last_processors = 0;  // How many processors share one.
  // True if a core reads a line that another core has written nearly as fast as its own. That holds
  // where a few cores each have a last level of their own (AMD since Zen), and not where all of a
  // socket share one over a mesh.
  bool is_near = false;
  // How many processors the ranks of this machine may run on, all together; no single rank says it.
  std::uint32_t processors = 0;

  bool operator==(const Caches&) const = default;
};

// The caches of the processors that this process may run on. `root`: of the file system.
Caches own_caches(const std::string& root = "");

// "33554432,8,near"; what is no such text says nothing.
std::string caches_text(const Caches& caches);
Caches caches_from(const std::string& text);

// The least of what all ranks have; a value that one rank does not know is unknown.
Caches least_caches(const std::vector<Caches>& ranks);

// The total size of the last levels that so many ranks fill if they run as close together as they
// can, each on a processor of its own as far as the number of processors is known.
std::uint64_t last_level_bytes(const Caches& caches, std::uint32_t ranks);

}  // namespace ivy::comm
