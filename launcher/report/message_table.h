// SPDX-License-Identifier: Apache-2.0
// All messages that have an identifier, with meaning, cause and fix. `ivyctl explain` and
// docs/when-it-fails.md are generated from it. Pure; thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ivy {

struct MessageEntry {
  std::string_view id;
  std::string_view meaning;
  std::string_view cause;
  std::string_view fix;
  std::string_view exit;  // "120", "its own"; empty: a warning or a note.
};

std::span<const MessageEntry> message_table();

// Accepts "IVY-H003", "h003" and "H3"; returns null if there is no such entry.
const MessageEntry* find_message(std::string_view id);
std::string explain_message(const MessageEntry& entry);

// The page docs/when-it-fails.md, in Markdown.
std::string messages_page();

}  // namespace ivy
