// SPDX-License-Identifier: Apache-2.0
// Removes bundles of builds that are no longer used. Every build of ivyrun puts one beside the
// others (launcher/links/README.md, "Remote command"); without this each upgrade would leave some
// 15 MB on every host for good. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// An entry of a directory of bundles.
struct BundleEntry {
  std::string name;
  std::int64_t age_s = 0;  // Since its last use; for an incomplete one, since its creation.
};

// True if this is the name of a bundle's directory: HASH-ARCHITECTURE.
bool is_bundle_directory(std::string_view name);

// Returns the names that may be removed: bundles unused for 30 days that are not among the three
// last used, and what an installation or a removal that was killed left more than a day ago. Pure.
std::vector<std::string> old_bundles(std::vector<BundleEntry> entries);

// Marks the bundle in `program_directory` as used, once a day, and then removes old ones beside it.
// Anything but a bundle's directory is left alone, and so are files of other users.
void sweep_old_bundles(const std::string& program_directory);

}  // namespace ivy
