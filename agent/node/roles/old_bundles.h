// Bundles of builds that nobody uses any more. Every build of ivyrun puts one beside the others
// (launcher/links/README.md, "Remote command"); without this each upgrade would leave some 20 MB on
// every host for good. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// What lies in a directory of bundles.
struct BundleEntry {
  std::string name;
  std::int64_t age_s = 0;  // Since its last use; of a half-made one since it was begun.
};

// Is this the directory of a bundle: HASH-ARCHITECTURE?
bool is_bundle_directory(std::string_view name);

// The names that may go: bundles unused for 30 days which are not among the three last used, and
// what an installation that was killed left more than a day ago. Pure.
std::vector<std::string> old_bundles(std::vector<BundleEntry> entries);

// Notes that the bundle in `program_directory` is used, once a day, and then removes what may go
// beside it. Anything else than a bundle's directory is left alone, and so is what belongs to
// others.
void sweep_old_bundles(const std::string& program_directory);

}  // namespace ivy
