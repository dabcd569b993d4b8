// SPDX-License-Identifier: Apache-2.0
// All messages with an identifier: meaning, cause and fix. `ivyctl explain` and
// docs/when-it-fails.md are generated from this table. Pure; thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ivy {

// ivyrun's exit code after a message: one or two codes of exit_code.h, or a text such as
// "128 + signal". An empty text stands for a warning or a note, after which the job continues.
struct MessageExit {
  constexpr MessageExit(int one, int another = 0) : code(one), other(another) {}  // NOLINT
  constexpr MessageExit(const char* instead) : text(instead) {}                   // NOLINT

  int code = 0;
  int other = 0;
  std::string_view text = {};
};

struct MessageEntry {
  std::string_view id;
  std::string_view meaning;
  std::string_view cause;
  std::string_view fix;
  MessageExit exit;
};

std::span<const MessageEntry> message_table();

// Accepts "IVY-H003", "h003" and "H3"; returns null if there is no such entry.
const MessageEntry* find_message(std::string_view id);
std::string explain_message(const MessageEntry& entry);

// Returns the page docs/when-it-fails.md, in Markdown.
std::string messages_page();

}  // namespace ivy
