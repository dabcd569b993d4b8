#include "proto/pages/command_page.h"

#include <algorithm>
#include <cctype>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::size_t kTextColumn = 32;
constexpr std::size_t kVerbColumn = 44;

std::string option_help(const PageOption& option) {
  const bool has_letter = option.spellings.front().size() == 2;
  return help_entry((has_letter ? "  " : "      ") + typed_option(option), option.text,
                    kTextColumn);
}

std::string section_help(const PageSection& section, HelpLength length) {
  std::string text;
  for (const PageOption& option : section.options)
    if (length == HelpLength::kAll || option.is_daily) text += option_help(option);
  return text.empty() ? text : "\n" + section.title + ":\n" + text;
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

std::string help_text(const CommandPage& page, HelpLength length) {
  std::string text = usages_text(page);
  text += "\n" + page.description + (page.description.ends_with('\n') ? "" : "\n");
  if (!page.examples.empty()) text += "\n";
  for (const auto& [typed, what] : page.examples) text += help_entry("  " + typed, what, 58);
  if (!page.verbs.empty()) text += "\n";
  for (const PageVerb& verb : page.verbs)
    text += help_entry("  " + page.name + " " + verb.usage, verb.text, kVerbColumn);
  for (const PageSection& section : page.sections) text += section_help(section, length);
  return text + "\n" + page.closing;
}

std::string verb_help(const CommandPage& page, const PageVerb& verb) {
  std::string text = "usage: " + page.name + " " + verb.usage + "\n\n" + verb.text + "\n";
  if (!verb.options.empty()) text += "\n";
  for (const PageOption& option : verb.options) text += option_help(option);
  if (!verb.more.empty()) text += "\n" + verb.more + "\n";
  if (!verb.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : verb.examples) text += "  " + example + "\n";
  return text;
}

std::optional<std::string> topic_help(const CommandPage& page, std::string_view topic) {
  const std::string name = bare(topic);
  for (const PageSection& section : page.sections)
    if (section.topic == name) return section_help(section, HelpLength::kAll).substr(1);
  for (const PageVerb& verb : page.verbs)
    if (verb.name == name) return verb_help(page, verb);
  for (const PageSection& section : page.sections) {
    for (const PageOption& option : section.options) {
      if (!is_called(option, name)) continue;
      std::string text = option_help(option);
      if (!option.aliases.empty())
        text += help_entry("", "also written " + joined(option.aliases, ", "), kTextColumn);
      return text;
    }
  }
  return std::nullopt;
}

ValueWords value_words(const PageOption& option) {
  ValueWords values;
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

std::optional<std::string> generated_page(const CommandPage& page, std::string_view form) {
  if (form == "man") return man_page(page);
  if (form == "markdown") return markdown_page(page);
  if (form == "bash") return bash_completion(page);
  if (form == "zsh") return zsh_completion(page);
  if (form == "fish") return fish_completion(page);
  return std::nullopt;
}

}  // namespace ivy
