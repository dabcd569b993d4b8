// SPDX-License-Identifier: Apache-2.0
#include "proto/pages/completions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// In the scripts, {program} stands for the program's name and {function} for a name that is made
// from it. For @files, bash falls back to its default, which is files.
constexpr std::string_view kBash = R"(# Completion of {program} for bash.
_{function}() {
  local IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} offers
  offers=($("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  COMPREPLY=()
  case ${offers[0]} in
    '@program '*)
      if declare -F _command_offset >/dev/null; then
        IFS=$' \t\n'
        _command_offset "${offers[0]#@program }"
      else
        COMPREPLY=($(compgen -c -- "$cur") $(compgen -f -- "$cur"))
      fi
      ;;
    @directories) COMPREPLY=($(compgen -d -- "$cur")) ;;
    @files) ;;
    *) COMPREPLY=("${offers[@]%%$'\t'*}") ;;
  esac
}
complete -o default -F _{function} {program}
)";

// If zsh autoloads the function by its name, it is called; if the file is sourced, it is only
// registered.
constexpr std::string_view kZsh = R"(#compdef {program}
_{function}() {
  local -a offers
  offers=("${(@f)$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case $offers[1] in
    '@program '*)
      local skipped=${offers[1]#@program }
      shift $skipped words
      (( CURRENT -= skipped ))
      _normal
      ;;
    @directories) _files -/ ;;
    @files|'') _files ;;
    *)
      offers=("${(@)offers//:/\\:}")
      offers=("${(@)offers/$'\t'/:}")
      _describe {program} offers
      ;;
  esac
}
if [[ $funcstack[1] == _{function} ]]; then
  _{function} "$@"
else
  compdef _{function} {program}
fi
)";

constexpr std::string_view kFish = R"(# Completion of {program} for fish.
function _{function}
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
complete -c {program} -f -a '(_{function})'
)";

std::string with_replaced(std::string_view text, std::string_view placeholder,
                          std::string_view replacement) {
  std::string out;
  for (;;) {
    const std::size_t begin = text.find(placeholder);
    out += text.substr(0, begin);
    if (begin == std::string_view::npos) return out;
    out += replacement;
    text.remove_prefix(begin + placeholder.size());
  }
}

std::string script_for(const std::string& program, std::string_view script) {
  // The name of a shell function must not contain dashes.
  std::string function = program;
  std::replace(function.begin(), function.end(), '-', '_');
  return with_replaced(with_replaced(script, "{program}", program), "{function}", function);
}

using Options = std::vector<const PageOption*>;

// Shells show a description next to its word, so only its first clause is offered.
std::string_view first_clause(std::string_view text) { return text.substr(0, text.find("; ")); }

// Collects the words that start with the typed text.
class Offers {
 public:
  explicit Offers(const std::string& typed) : typed_(typed) {}
  void add(const std::string& word, std::string_view text = {}) {
    if (!word.starts_with(typed_)) return;
    lines_ += word;
    if (!text.empty()) lines_ += "\t" + std::string(first_clause(text));
    lines_ += "\n";
  }
  std::string take() { return std::move(lines_); }

 private:
  const std::string& typed_;
  std::string lines_;
};

bool has_spelling(const PageOption& option, std::string_view typed) {
  return std::count(option.spellings.begin(), option.spellings.end(), typed) > 0 ||
         std::count(option.aliases.begin(), option.aliases.end(), typed) > 0;
}

// Returns the option with that spelling if it takes a value, otherwise null.
const PageOption* find_with_value(const Options& options, std::string_view typed) {
  for (const PageOption* option : options)
    if (!option->value.empty() && has_spelling(*option, typed)) return option;
  return nullptr;
}

// Returns how many words the option at `begin` occupies, including its value. Bash splits
// "--flag=value" into three words; other shells pass it as one.
std::size_t option_length(const Options& options, const std::vector<std::string>& words,
                          std::size_t begin) {
  if (begin + 1 < words.size() && words[begin + 1] == "=") return 3;
  return find_with_value(options, words[begin]) != nullptr ? 2 : 1;
}

// `prefix` is "--flag=" if the value is in the same word as its flag: the shell replaces the whole
// word, and cannot complete a file name within it.
std::string value_offers(const PageOption& option, const std::string& typed,
                         const std::string& prefix, const ValueSource& source) {
  const ValueChoices values = value_choices(option);
  Offers offers(typed);
  for (const std::string& word : values.words) offers.add(prefix + word);
  if (source)
    for (const std::string& word : source(option.value)) offers.add(prefix + word);
  std::string lines = offers.take();
  if (!lines.empty() || !prefix.empty()) return lines;
  return values.is_directory ? "@directories\n" : values.is_file ? "@files\n" : "";
}

std::string flag_offers(const Options& options, const std::string& typed) {
  Offers offers(typed);
  for (const PageOption* option : options)
    for (const std::string& spelling : option->spellings) offers.add(spelling, option->text);
  return offers.take();
}

// Completes the last word, which belongs to the option at `begin`: it is the flag or its value.
std::string option_offers(const Options& options, const std::vector<std::string>& words,
                          std::size_t begin, const ValueSource& source) {
  const std::string& typed = words.back();
  if (begin + 1 < words.size()) {
    const PageOption* option = find_with_value(options, words[begin]);
    return option == nullptr ? "" : value_offers(*option, typed == "=" ? "" : typed, "", source);
  }
  const std::size_t equals = typed.find('=');
  if (equals == std::string::npos) return flag_offers(options, typed);
  const PageOption* option = find_with_value(options, typed.substr(0, equals));
  return option == nullptr ? "" : value_offers(*option, typed, typed.substr(0, equals + 1), source);
}

// A launcher's flags end at the name of the user's program.
std::string launcher_offers(const CommandPage& page, const std::vector<std::string>& words,
                            const ValueSource& source) {
  Options options;
  for (const PageSection& section : page.sections)
    for (const PageOption& option : section.options) options.push_back(&option);
  std::size_t begin = 0;
  while (words[begin].starts_with('-')) {
    const std::size_t next = begin + option_length(options, words, begin);
    if (next >= words.size()) return option_offers(options, words, begin, source);
    begin = next;
  }
  // `words` starts after the name of the launcher, which is word 0.
  return "@program " + std::to_string(begin + 1) + "\n";
}

// Returns, for example, "ca" for the verb "ca init".
std::string first_word(const PageVerb& verb) { return verb.name.substr(0, verb.name.find(' ')); }

// Completes a word that is not an option. The usage line names the possible operands: "logs [JOB]".
std::string operand_offers(const PageVerb& verb, const std::string& typed,
                           const ValueSource& source) {
  if (!source) return "";
  Offers offers(typed);
  for (std::string_view word : words_of(verb.usage)) {
    if (word.starts_with('[')) word.remove_prefix(1);
    if (word.ends_with(']')) word.remove_suffix(1);
    for (const std::string& offer : source(word)) offers.add(offer);
  }
  return offers.take();
}

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
    for (std::size_t begin = 1; begin < words.size();) {
      const bool is_option = words[begin].starts_with('-');
      const std::size_t next = begin + (is_option ? option_length(options, words, begin) : 1);
      if (is_option && next >= words.size()) return option_offers(options, words, begin, source);
      begin = next;
    }
    return operand_offers(verb, words.back(), source);
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
  if (form == "bash") return script_for(page.name, kBash);
  if (form == "zsh") return script_for(page.name, kZsh);
  if (form == "fish") return script_for(page.name, kFish);
  return std::nullopt;
}

}  // namespace ivy
