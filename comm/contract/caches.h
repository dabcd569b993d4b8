// The caches that ranks of one machine share, as far as thresholds depend on them. All ranks use
// the same numbers: each says its own at init, and the least of what all have said counts.
//
// Pure but for own_caches(). Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy::comm {

// 0: not known.
struct Caches {
  std::uint64_t last_bytes = 0;       // Of the last level, of one such cache.
  std::uint32_t last_processors = 0;  // How many processors share it.
  // Is a line that one core has written nearly as fast for another core as its own? So it is where
  // a few cores each have a last level of their own (AMD since Zen), and not where all of a socket
  // share one over a mesh.
  bool is_near = false;
  // That the ranks of this machine may run on, all together; not what one of them says.
  std::uint32_t processors = 0;

  bool operator==(const Caches&) const = default;
};

// Of the processors that this process may run on. `root`: of the file system.
Caches own_caches(const std::string& root = "");

// "33554432,8,near"; what is no such text says nothing.
std::string caches_text(const Caches& caches);
Caches caches_from(const std::string& text);

// What all have: where one does not know, nobody does.
Caches least_caches(const std::vector<Caches>& ranks);

// Of all the last levels that so many ranks fill, if they stand as close together as they can and
// there is a processor for each, as far as that is known.
std::uint64_t last_level_bytes(const Caches& caches, std::uint32_t ranks);

}  // namespace ivy::comm
