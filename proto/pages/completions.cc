// SPDX-License-Identifier: Apache-2.0
// Completions for shells. The program itself determines the possible words; a script for each shell
// requests them (`PROGRAM --complete WORD...`).
#include <algorithm>

#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

constexpr std::string_view kBash = R"(# Completion of PROGRAM for bash.
_FUNCTION() {
  local IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} offers
  offers=($("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  COMPREPLY=()
  case ${offers[0]} in
    '@program '*)
      if declare -F _command_offset >/dev/null; then IFS=$' \t\n'; _command_offset "${offers[0]#@program }"
      else COMPREPLY=($(compgen -c -- "$cur") $(compgen -f -- "$cur")); fi ;;
    @directories) COMPREPLY=($(compgen -d -- "$cur")) ;;
    @files) ;;
    *) COMPREPLY=("${offers[@]%%$'\t'*}") ;;
  esac
}
complete -o default -F _FUNCTION PROGRAM
)";

// If zsh autoloads the function by its name, it is called; if the file is sourced, it is only
// registered.
constexpr std::string_view kZsh = R"(#compdef PROGRAM
_FUNCTION() {
  local -a offers
  offers=("${(@f)$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case $offers[1] in
    '@program '*) local skipped=${offers[1]#@program }; shift $skipped words; (( CURRENT -= skipped )); _normal ;;
    @directories) _files -/ ;;
    @files|'') _files ;;
    *) offers=("${(@)offers//:/\\:}"); offers=("${(@)offers/$'\t'/:}"); _describe PROGRAM offers ;;
  esac
}
if [[ $funcstack[1] == _FUNCTION ]]; then _FUNCTION "$@"; else compdef _FUNCTION PROGRAM; fi
)";

constexpr std::string_view kFish = R"(# Completion of PROGRAM for fish.
function _FUNCTION
  set -l typed (commandline -opc)
  set -l offers ($typed[1] --complete $typed[2..-1] (commandline -ct) 2>/dev/null)
  switch "$offers[1]"
    case '@program *'
      __fish_complete_subcommand --fcs-skip=(string replace '@program ' '' -- $offers[1])
    case '@directories'
      __fish_complete_directories (commandline -ct)
    case '@files'
      __fish_complete_path (commandline -ct)
    case '*'
      printf '%s\n' $offers
  end
end
complete -c PROGRAM -f -a '(_FUNCTION)'
)";

std::string filled(std::string_view script, const std::string& program) {
  // The name of a shell function must not contain dashes.
  std::string function = program;
  std::replace(function.begin(), function.end(), '-', '_');
  std::string out(script);
  for (const auto& [word, name] :
       {std::pair<std::string_view, const std::string&>("FUNCTION", function),
        {"PROGRAM", program}})
    for (std::size_t at = out.find(word); at != std::string::npos; at = out.find(word, at))
      out.replace(at, word.size(), name);
  return out;
}

using Options = std::vector<const PageOption*>;

// Collects the words that start with the typed text.
class Offers {
 public:
  explicit Offers(const std::string& typed) : typed_(typed) {}
  void add(const std::string& word, std::string_view text = {}) {
    if (!word.starts_with(typed_)) return;
    text_ +=
        word + (text.empty() ? "" : "\t" + std::string(text.substr(0, text.find("; ")))) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string& typed_;
  std::string text_;
};

bool is_spelling(const PageOption& option, std::string_view typed) {
  const auto is_it = [&](const std::string& known) { return known == typed; };
  return std::any_of(option.spellings.begin(), option.spellings.end(), is_it) ||
         std::any_of(option.aliases.begin(), option.aliases.end(), is_it);
}

// Returns the option with that spelling if it takes a value, otherwise null.
const PageOption* with_value(const Options& options, std::string_view typed) {
  for (const PageOption* option : options)
    if (!option->value.empty() && is_spelling(*option, typed)) return option;
  return nullptr;
}

std::string value_offers(const PageOption& option, const std::string& typed,
                         const std::string& lead, const ValueSource& source) {
  const ValueChoices values = value_choices(option);
  Offers offers(typed);
  for (const std::string& word : values.words) offers.add(lead + word);
  if (source)
    for (const std::string& word : source(option.value)) offers.add(lead + word);
  std::string text = offers.take();
  if (!text.empty() || !lead.empty()) return text;
  return values.is_directory ? "@directories\n" : values.is_file ? "@files\n" : "";
}

std::string flag_offers(const Options& options, const std::string& typed) {
  Offers offers(typed);
  for (const PageOption* option : options)
    for (const std::string& spelling : option->spellings) offers.add(spelling, option->text);
  return offers.take();
}

// Completes the value or the flag that is being typed. Returns nothing if it is neither.
std::optional<std::string> option_offers(const Options& options,
                                         const std::vector<std::string>& words,
                                         const ValueSource& source) {
  const std::string& typed = words.back();
  // Bash splits --flag=value into three words.
  const std::size_t count = words.size();
  const bool is_cut = count > 2 && words[count - 2] == "=";
  const std::string before = count < 2 ? "" : words[count - (is_cut ? 3 : 2)];
  if (const PageOption* option = with_value(options, before))
    return value_offers(*option, typed == "=" ? "" : typed, "", source);
  if (!typed.starts_with('-')) return std::nullopt;
  const std::size_t equals = typed.find('=');
  if (equals == std::string::npos) return flag_offers(options, typed);
  const PageOption* option = with_value(options, typed.substr(0, equals));
  if (option == nullptr) return "";
  return value_offers(*option, typed, typed.substr(0, equals + 1), source);
}

// A launcher's flags end at the program.
std::string launcher_offers(const CommandPage& page, const std::vector<std::string>& words,
                            const ValueSource& source) {
  Options options;
  for (const PageSection& section : page.sections)
    for (const PageOption& option : section.options) options.push_back(&option);
  std::size_t at = 0;
  while (at + 1 < words.size() && (words[at].starts_with('-') || words[at] == "=")) {
    const bool takes_next = with_value(options, words[at]) != nullptr && words[at] != "=";
    const bool is_cut = at + 1 < words.size() && words[at + 1] == "=";
    at += takes_next ? (is_cut ? 3 : 2) : 1;
  }
  const std::string program = "@program " + std::to_string(at + 1) + "\n";
  if (at + 1 < words.size()) return program;
  return option_offers(options, words, source).value_or(program);
}

// Returns, for example, "ca" for the verb "ca init".
std::string first_word(const PageVerb& verb) { return verb.name.substr(0, verb.name.find(' ')); }

std::string verb_offers(const CommandPage& page, const std::vector<std::string>& words,
                        const ValueSource& source) {
  if (words.size() == 1) {
    Offers offers(words.back());
    for (const PageVerb& verb : page.verbs) offers.add(first_word(verb), verb.text);
    for (const char* flag : {"--help", "--version"}) offers.add(flag);
    return offers.take();
  }
  for (const PageVerb& verb : page.verbs) {
    if (first_word(verb) != words.front()) continue;
    Options options;
    for (const PageOption& option : verb.options) options.push_back(&option);
    if (std::optional<std::string> found = option_offers(options, words, source)) return *found;
    Offers offers(words.back());
    for (const std::string_view value : {"JOB", "ID"})
      if (source && verb.usage.find(value) != std::string::npos)
        for (const std::string& word : source(value)) offers.add(word);
    return offers.take();
  }
  return "";
}

}  // namespace

std::string completions(const CommandPage& page, const std::vector<std::string>& words,
                        const ValueSource& source) {
  if (words.empty()) return "";
  return page.verbs.empty() ? launcher_offers(page, words, source)
                            : verb_offers(page, words, source);
}

std::optional<std::string> generated_page(const CommandPage& page, std::string_view form) {
  if (form == "markdown") return markdown_page(page);
  if (form == "bash") return filled(kBash, page.name);
  if (form == "zsh") return filled(kZsh, page.name);
  if (form == "fish") return filled(kFish, page.name);
  return std::nullopt;
}

}  // namespace ivy
