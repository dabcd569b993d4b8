// SPDX-License-Identifier: Apache-2.0
// All messages with an identifier: meaning, cause and fix. `ivyctl explain` and
// docs/when-it-fails.md are generated from this table. Pure; thread: any.
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
  std::string_view exit;  // "120", "its own"; empty for a warning or a note.
};

std::span<const MessageEntry> message_table();

// Accepts "IVY-H003", "h003" and "H3"; returns null if there is no such entry.
const MessageEntry* find_message(std::string_view id);
std::string explain_message(const MessageEntry& entry);

// Returns the page docs/when-it-fails.md, in Markdown.
std::string messages_page();

}  // namespace ivy
