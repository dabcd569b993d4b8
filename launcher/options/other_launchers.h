// SPDX-License-Identifier: Apache-2.0
// Other launchers' flags and their equivalents here, for the page docs/coming-from.md. Pure;
// thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ivy {

struct OtherLauncher {
  std::string_view name;
  std::string_view flags;  // As written for that launcher, blank-separated.
  // Advice for its users, with its usual command line next to ivyrun's.
  std::string_view text;
};

std::span<const OtherLauncher> other_launchers();

// Returns Markdown with a command line and a list of flags for each launcher.
std::string coming_from_page();

}  // namespace ivy
