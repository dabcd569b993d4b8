// Completions of shells: what may follow what has been typed. Each offers the flags, the words and
// files of their values, verbs, and behind a launcher's flags the program as the shell itself
// completes it.
#include <algorithm>

#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

std::vector<const PageOption*> options_of(const CommandPage& page) {
  std::vector<const PageOption*> all;
  for (const PageSection& section : page.sections)
    for (const PageOption& option : section.options) all.push_back(&option);
  return all;
}

std::vector<const PageOption*> options_of(const PageVerb& verb) {
  std::vector<const PageOption*> all;
  for (const PageOption& option : verb.options) all.push_back(&option);
  return all;
}

// The function of a shell must not have a dash in its name.
std::string function_name(const CommandPage& page) {
  std::string name = "_" + page.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

using Options = std::vector<const PageOption*>;

std::string flags_of(const Options& options) {
  std::string text;
  for (const PageOption* option : options)
    for (const std::string& spelling : option->spellings) text += spelling + " ";
  return text;
}

// The cases of a flag's value, in bash.
std::string bash_values(const Options& options, const std::string& indent) {
  std::string text;
  for (const PageOption* option : options) {
    if (option->value.empty()) continue;
    const ValueWords values = value_words(*option);
    std::vector<std::string> typed = option->spellings;
    for (const std::string& alias : option->aliases)
      if (alias.find('=') == std::string::npos) typed.push_back(alias);
    text += indent + joined(typed, "|") + ") ";
    if (!values.words.empty())
      text += "COMPREPLY=($(compgen -W '" + joined(values.words, " ") + "' -- \"$cur\")); ";
    if (values.is_directory) text += "COMPREPLY=($(compgen -d -- \"$cur\")); ";
    // Without a reply -o default offers files.
    text += "return ;;\n";
  }
  return text;
}

std::string bash_options(const Options& options, const std::string& indent) {
  return indent + "case $prev in\n" + bash_values(options, indent + "  ") + indent + "esac\n" +
         indent + "[[ $cur == -* ]] && COMPREPLY=($(compgen -W '" + flags_of(options) +
         "' -- \"$cur\"))\n";
}

// Bash: a launcher's flags end at its program.
std::string bash_launcher(const CommandPage& page) {
  const Options options = options_of(page);
  std::string with_value;
  for (const PageOption* option : options) {
    if (option->value.empty()) continue;
    for (const std::string& spelling : option->spellings)
      with_value += (with_value.empty() ? "" : "|") + spelling;
  }
  return "  local word skip=0 at\n"
         "  for ((at = 1; at < COMP_CWORD; at++)); do\n"
         "    word=${COMP_WORDS[at]}\n"
         "    if ((skip)); then skip=0; continue; fi\n"
         "    case $word in\n"
         "      " +
         with_value +
         ") skip=1 ;;\n"
         "      -*|=) ;;\n"
         "      *) declare -F _command_offset >/dev/null && _command_offset $at; return ;;\n"
         "    esac\n"
         "  done\n" +
         bash_options(options, "  ") +
         "  [[ $cur != -* && -z $COMPREPLY ]] && COMPREPLY=($(compgen -c -- \"$cur\") $(compgen -f "
         "-- \"$cur\"))\n";
}

// "ca" of the verb "ca init".
std::string first_word(const PageVerb& verb) { return verb.name.substr(0, verb.name.find(' ')); }

std::string bash_verbs(const CommandPage& page) {
  std::vector<std::string> names;
  for (const PageVerb& verb : page.verbs) names.push_back(first_word(verb));
  std::string text =
      "  if ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W '" + joined(names, " ") +
      " --help --version' -- \"$cur\"))\n    return\n  fi\n  case ${COMP_WORDS[1]} in\n";
  for (const PageVerb& verb : page.verbs)
    text +=
        "    " + first_word(verb) + ")\n" + bash_options(options_of(verb), "      ") + "      ;;\n";
  return text + "  esac\n";
}

// What zsh's _arguments reads between brackets or colons.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    out += c;
  }
  return out;
}

std::string zsh_value(const PageOption& option) {
  if (option.value.empty()) return "";
  const ValueWords values = value_words(option);
  std::string text = ":" + zsh_text(option.value) + ":";
  if (!values.words.empty()) return text + "(" + joined(values.words, " ") + ")";
  if (values.is_directory) return text + "_files -/";
  return values.is_file ? text + "_files" : text;
}

std::string zsh_specs(const Options& options, const std::string& indent) {
  std::string text;
  for (const PageOption* option : options) {
    // Lists may be given several times: the other spellings stay on offer.
    for (const std::string& spelling : option->spellings) {
      const bool is_long = spelling.starts_with("--");
      const std::string joins = option->value.empty() ? "" : is_long ? "=" : "+";
      text += indent + "'*" + spelling + joins + "[" + zsh_text(option->text) + "]" +
              zsh_value(*option) + "' \\\n";
    }
  }
  return text;
}

std::string zsh_verbs(const CommandPage& page) {
  std::string text = "  local -a verbs=(\n";
  for (const PageVerb& verb : page.verbs)
    text += "    '" + zsh_text(first_word(verb)) + ":" + zsh_text(verb.text) + "'\n";
  text +=
      "  )\n  if ((CURRENT == 2)); then\n    _describe verb verbs\n    return\n  fi\n  local "
      "verb=$words[2]\n"
      "  shift words; ((CURRENT--))\n  case $verb in\n";
  for (const PageVerb& verb : page.verbs)
    text += "    " + first_word(verb) + ") _arguments -s -S \\\n" +
            zsh_specs(options_of(verb), "      ") + "      ;;\n";
  return text + "  esac\n";
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish_option(const CommandPage& page, const PageOption& option,
                        const std::string& condition) {
  const ValueWords values = value_words(option);
  std::string text = "complete -c " + page.name + condition;
  for (const std::string& spelling : option.spellings) {
    if (spelling.starts_with("--")) {
      text += " -l " + spelling.substr(2);
    } else {
      text += (spelling.size() == 2 ? " -s " : " -o ") + spelling.substr(1);
    }
  }
  if (!option.value.empty())
    text += values.is_file        ? " -r -F"
            : values.is_directory ? " -x -a '(__fish_complete_directories)'"
                                  : " -x";
  if (!values.words.empty()) text += " -a '" + joined(values.words, " ") + "'";
  return text + " -d '" + fish_text(option.text) + "'\n";
}

}  // namespace

std::string bash_completion(const CommandPage& page) {
  const std::string name = function_name(page);
  return "# Completion of " + page.name + " for bash.\n" + name +
         "() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n  "
         "COMPREPLY=()\n" +
         (page.verbs.empty() ? bash_launcher(page) : bash_verbs(page)) +
         "}\ncomplete -o default -F " + name + " " + page.name + "\n";
}

std::string zsh_completion(const CommandPage& page) {
  const std::string name = function_name(page);
  std::string text = "#compdef " + page.name + "\n" + name + "() {\n";
  if (page.verbs.empty()) {
    text += "  _arguments -s -S -A '-*' \\\n" + zsh_specs(options_of(page), "    ") +
            "    '(-)1:program:_path_commands -o' \\\n    '*::arguments:_normal'\n";
  } else {
    text += zsh_verbs(page);
  }
  // Loaded by its name it is called once; sourced it is only registered.
  return text + "}\nif [[ $funcstack[1] == " + name + " ]]; then " + name +
         " \"$@\"; else compdef " + name + " " + page.name + "; fi\n";
}

std::string fish_completion(const CommandPage& page) {
  std::string text = "# Completion of " + page.name + " for fish.\n";
  for (const PageOption* option : options_of(page)) text += fish_option(page, *option, "");
  for (const PageVerb& verb : page.verbs) {
    text += "complete -c " + page.name + " -f -n __fish_use_subcommand -a " + first_word(verb) +
            " -d '" + fish_text(verb.text) + "'\n";
    const std::string condition = " -n '__fish_seen_subcommand_from " + first_word(verb) + "'";
    for (const PageOption* option : options_of(verb)) text += fish_option(page, *option, condition);
  }
  return text;
}

}  // namespace ivy
