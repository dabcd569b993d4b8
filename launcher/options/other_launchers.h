// SPDX-License-Identifier: Apache-2.0
// The flags of other launchers, and what each is here: the page docs/coming-from.md. Pure; thread:
// any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ivy {

struct OtherLauncher {
  std::string_view name;
  std::string_view flags;  // As it writes them, blank-separated.
  // Advice for its users, with its usual command line next to ivyrun's.
  std::string_view text;
};

std::span<const OtherLauncher> other_launchers();

// Markdown: for each launcher a command line, and a list of its flags.
std::string coming_from_page();

}  // namespace ivy
