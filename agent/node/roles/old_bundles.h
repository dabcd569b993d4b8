// SPDX-License-Identifier: Apache-2.0
// Removes bundles of builds that are no longer used. Every build of ivyrun installs another bundle
// (launcher/links/README.md, "Remote command"), so otherwise each upgrade would leave some 15 MB on
// every host forever. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// An entry of a directory of bundles.
struct BundleEntry {
  std::string name;
  std::int64_t age_s = 0;  // Since its last use, or, if incomplete, since its creation.
};

// Returns true for the name of a bundle's directory: HASH-ARCHITECTURE.
bool is_bundle_directory(std::string_view name);

// Returns the names that may be removed: bundles unused for 30 days, except the three last used,
// and leftovers, more than a day old, of an installation or a removal that was killed. Pure.
std::vector<std::string> old_bundles(std::vector<BundleEntry> entries);

// Marks the bundle in `program_directory` as used, once a day, and then removes old bundles next to
// it. Does not touch anything else, and no files of other users.
void sweep_old_bundles(const std::string& program_directory);

}  // namespace ivy
