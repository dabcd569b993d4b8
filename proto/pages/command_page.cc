// SPDX-License-Identifier: Apache-2.0
#include "proto/pages/command_page.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {

std::string entry_text(std::string typed, std::string_view text, std::size_t column,
                       std::size_t width) {
  std::string out;
  std::string line = std::move(typed);
  if (!line.empty() && line.size() + 2 > column) {
    // A long list of words continues on the next line.
    for (std::size_t cut = 0; line.size() > width; line = "        " + line.substr(cut + 1)) {
      cut = line.rfind('|', width - 1);
      if (cut == std::string::npos) break;
      out += line.substr(0, cut + 1) + "\n";
    }
    out += line + "\n";
    line.clear();
  }
  line.resize(column, ' ');
  for (const std::string_view word : words_of(text)) {
    if (line.size() + word.size() + 1 > width) {
      out += line + "\n";
      line.assign(column, ' ');
    }
    if (line.size() > column) line += " ";
    line += word;
  }
  return out + line + "\n";
}

namespace {

constexpr std::size_t kNarrowest = 40;
constexpr std::size_t kWidest = 100;
constexpr std::size_t kVerbColumn = 14;

// Returns the column at which the text of an option starts.
std::size_t text_column(const CommandPage& page) {
  return std::min<std::size_t>(30, page.width / 3);
}

std::string option_help(const CommandPage& page, const PageOption& option, std::string_view text) {
  const bool has_letter = option.spellings.front().size() == 2;
  return entry_text((has_letter ? "  " : "      ") + typed_option(option), text, text_column(page),
                    page.width);
}

// Returns the first clause of an option's text.
std::string_view brief(std::string_view text) {
  for (const std::string_view end : {"; ", ": ", " ("}) text = text.substr(0, text.find(end));
  return text;
}

std::string section_help(const CommandPage& page, const PageSection& section) {
  std::string text = section.title + ":\n";
  for (const PageOption& option : section.options) text += option_help(page, option, option.text);
  return text;
}

// Wraps each line at the page's width and keeps its indentation.
std::string wrapped(const CommandPage& page, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    out += line.size() <= page.width ? std::string(line) + "\n"
                                     : entry_text("", line, indent, page.width);
  }
  return out;
}

std::string usages_text(const CommandPage& page) {
  std::string text;
  for (const std::string& usage : page.usages)
    text += (text.empty() ? "usage: " : "       ") + usage + "\n";
  return text;
}

std::string bare(std::string_view typed) {
  std::string name(typed.substr(std::min(typed.find_first_not_of('-'), typed.size())));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_called(const PageOption& option, const std::string& name) {
  const auto is_name = [&](const std::string& spelling) {
    return bare(std::string_view(spelling).substr(0, spelling.find('='))) == name;
  };
  return std::any_of(option.spellings.begin(), option.spellings.end(), is_name) ||
         std::any_of(option.aliases.begin(), option.aliases.end(), is_name);
}

}  // namespace

std::string typed_option(const PageOption& option) {
  return joined(option.spellings, ", ") + (option.value.empty() ? "" : " " + option.value);
}

std::size_t help_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0)
    return kHelpWidth;
  return std::clamp<std::size_t>(size.ws_col, kNarrowest, kWidest);
}

std::string help_text(const CommandPage& page, HelpLength length) {
  std::string text = usages_text(page) + "\n" + wrapped(page, page.description);
  if (!page.examples.empty()) text += "\n";
  for (const auto& [typed, what] : page.examples)
    text +=
        entry_text("  " + typed, what, page.width < kHelpWidth ? page.width / 2 : 57, page.width);
  if (!page.verbs.empty()) text += "\n";
  for (const PageVerb& verb : page.verbs)
    text += entry_text("  " + verb.name, verb.text, kVerbColumn, page.width);
  if (length == HelpLength::kDaily) {
    text += "\n";
    for (const PageSection& section : page.sections)
      for (const PageOption& option : section.options)
        if (option.is_daily) text += option_help(page, option, brief(option.text));
  } else {
    for (const PageSection& section : page.sections) text += "\n" + section_help(page, section);
  }
  return text + "\n" + wrapped(page, page.closing);
}

std::string verb_help(const CommandPage& page, const PageVerb& verb) {
  constexpr std::string_view kLead = "usage: ";
  std::string text = entry_text("", page.name + " " + verb.usage, kLead.size(), page.width);
  text.replace(0, kLead.size(), kLead);
  text += "\n" + entry_text("", verb.text, 0, page.width);
  if (!verb.options.empty()) text += "\n";
  for (const PageOption& option : verb.options) text += option_help(page, option, option.text);
  if (!verb.more.empty()) text += "\n" + wrapped(page, verb.more);
  if (!verb.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : verb.examples) text += "  " + example + "\n";
  return text;
}

std::optional<std::string> topic_help(const CommandPage& page, std::string_view topic) {
  const std::string name = bare(topic);
  for (const PageSection& section : page.sections)
    if (section.topic == name) return section_help(page, section);
  for (const PageVerb& verb : page.verbs)
    if (verb.name == name) return verb_help(page, verb);
  for (const PageSection& section : page.sections) {
    for (const PageOption& option : section.options) {
      if (!is_called(option, name)) continue;
      std::string text = option_help(page, option, option.text);
      if (!option.aliases.empty())
        text += entry_text("", "also written " + joined(option.aliases, ", "), text_column(page),
                           page.width);
      return text;
    }
  }
  return std::nullopt;
}

ValueChoices value_choices(const PageOption& option) {
  ValueChoices values;
  std::string_view rest = option.value;
  while (!rest.empty()) {
    const std::string_view word = take_part(rest, '|');
    if (word == "FILE" || word == "PATH" || word == "@FILE") values.is_file = true;
    if (word == "DIR") values.is_directory = true;
    const bool is_word = std::all_of(word.begin(), word.end(), [](char c) {
      return std::islower(static_cast<unsigned char>(c)) ||
             std::isdigit(static_cast<unsigned char>(c)) || c == '-';
    });
    if (is_word && !word.empty()) values.words.emplace_back(word);
  }
  return values;
}

std::string markdown_item(std::string_view typed, std::string_view text) {
  constexpr std::size_t kPageWidth = 118;
  std::string out;
  std::string line = "- " + std::string(typed) + ":";
  for (const std::string_view word : words_of(text)) {
    if (line.size() + word.size() + 1 > kPageWidth) {
      out += line + "\n";
      line = " ";
    }
    line += " ";
    for (const char c : word) line += c == '<' ? std::string("&lt;") : std::string(1, c);
  }
  return out + line + "\n";
}

namespace {

std::string markdown_options(const std::vector<PageOption>& options) {
  std::string text;
  for (const PageOption& option : options) {
    std::string what = option.text;
    if (!option.aliases.empty()) what += "; also `" + joined(option.aliases, "`, `") + "`";
    text += markdown_item("`" + typed_option(option) + "`", what);
  }
  return text;
}

}  // namespace

std::string markdown_page(const CommandPage& page) {
  std::string text;
  for (const PageSection& section : page.sections)
    text += "\n## " + section.title + "\n" + markdown_options(section.options);
  for (const PageVerb& verb : page.verbs) {
    text += "\n## " + page.name + " " + verb.name + "\n`" + page.name + " " + verb.usage +
            "`: " + verb.text + ".\n";
    if (!verb.options.empty()) text += "\n" + markdown_options(verb.options);
  }
  return text;
}

}  // namespace ivy
