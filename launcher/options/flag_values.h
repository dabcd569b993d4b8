// SPDX-License-Identifier: Apache-2.0
// Flags of a CLI11 program whose values are parsed by our own functions (option_values.h). Their
// errors name the flag and are returned as an Error.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/option_values.h"

namespace ivy {

// Carries an Error through CLI11; caught in parse_words().
struct RejectedFlag : CLI::ParseError {
  explicit RejectedFlag(ivy::Error reason)
      : ParseError("RejectedFlag", reason.message, CLI::ExitCodes::ValidationError),
        why(std::move(reason)) {}
  ivy::Error why;
};

// Adds a flag of which the last value counts. take() returns a Result; `spelling` is the flag as
// the user wrote it.
template <class Take>
void add_flag_value(CLI::App& app, const std::string& flag, const std::string& spelling,
                    Take take) {
  const auto checked = [spelling, take](const std::string& text) {
    if (const Result<void> taken = take(text); !taken.ok())
      throw RejectedFlag(taken.error().context(spelling));
  };
  app.add_option_function<std::string>(flag, checked)->take_last();
}

// Returns a function that stores the result of parse() in `target`.
template <class T, class Parse>
auto stored_in(T& target, Parse parse) {
  return [&target, parse](const std::string& text) -> Result<void> {
    target = IVY_TRY(parse(text));
    return {};
  };
}

// Returns a parser that accepts one of these words.
template <class T>
auto one_of(std::vector<std::pair<std::string, T>> choices) {
  return [known = std::move(choices)](const std::string& text) -> Result<T> {
    std::string allowed;
    for (const auto& [word, meaning] : known) {
      if (word == text) return meaning;
      allowed += (allowed.empty() ? "" : ", ") + word;
    }
    return usage_error("\"" + text + "\" is not one of " + allowed);
  };
}
inline auto parse_colour_choice() {
  return one_of<ColorChoice>({{"auto", ColorChoice::kAuto},
                              {"always", ColorChoice::kAlways},
                              {"never", ColorChoice::kNever}});
}

// Parses the words. `advice` is added to errors that CLI11 itself detects.
inline Result<void> parse_words(CLI::App& app, std::vector<std::string> words,
                                const std::string& advice = {}) {
  // CLI11 takes the words in reverse order.
  std::reverse(words.begin(), words.end());
  try {
    app.parse(words);
  } catch (const RejectedFlag& rejected) {
    return rejected.why;
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what(), advice);
  }
  return {};
}

}  // namespace ivy
