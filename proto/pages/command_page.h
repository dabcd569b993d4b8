// SPDX-License-Identifier: Apache-2.0
// One value that describes a program. Its help, shell completions (completions.h) and the tables of
// the documentation are generated from it. Pure except help_width(); thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy {

// Width of help that is not printed on a terminal.
inline constexpr std::size_t kHelpWidth = 80;

struct PageOption {
  std::vector<std::string> spellings;  // "-n", "--num-proc": the letter first, then the full name.
  std::string value;                   // Name of its value; empty for a switch.
  std::string text;
  std::vector<std::string> aliases = {};  // Also accepted, but omitted from the help.
  bool is_daily = true;                   // Part of the short help.
};

// Options under one title. `topic` is the argument of --help that selects them.
struct PageSection {
  std::string topic;
  std::string title;
  std::vector<PageOption> options;
};

// A program's verb, such as "ivyctl logs".
struct PageVerb {
  std::string name;
  std::string usage;  // Includes the name: "logs [-f] [JOB]".
  std::string text;
  std::vector<PageOption> options;
  std::string more;
  std::vector<std::string> examples;
};

struct CommandPage {
  std::string name;
  std::string section = "1";
  std::string summary;  // One line, without a full stop.
  std::vector<std::string> usages;
  std::string description;
  std::vector<PageSection> sections;
  std::vector<PageVerb> verbs;
  std::vector<std::pair<std::string, std::string>> examples;  // Command lines and their effects.
  std::string closing;                                        // Exit codes and the like.
  std::size_t width = kHelpWidth;
};

// Returns the width of the terminal on standard output, at most 100, or kHelpWidth if it is not a
// terminal.
std::size_t help_width();
// Formats an entry: `typed`, then from `column` on its text, wrapped at `width`. The text starts on
// the next line if `typed` is too long.
std::string entry_text(std::string typed, std::string_view text, std::size_t column,
                       std::size_t width);

// Selects all options, or only the daily ones.
enum class HelpLength { kDaily, kAll };
std::string help_text(const CommandPage& page, HelpLength length);
std::string verb_help(const CommandPage& page, const PageVerb& verb);
// Returns the help of a section by its topic, of one option by any of its spellings (with or
// without dashes), or of a verb by its name. Returns nothing if there is no such topic.
std::optional<std::string> topic_help(const CommandPage& page, std::string_view topic);

// Formats an option as in the help: "-n, --num-proc N".
std::string typed_option(const PageOption& option);

// Lists all options, for the documentation.
std::string markdown_page(const CommandPage& page);
// Formats an item of a Markdown list, wrapped like the documentation.
std::string markdown_item(std::string_view typed, std::string_view text);

// Values that a shell may offer for an option, by the value's name.
struct ValueChoices {
  bool is_file = false;
  bool is_directory = false;
  std::vector<std::string> words;
};
ValueChoices value_choices(const PageOption& option);

}  // namespace ivy
