// SPDX-License-Identifier: Apache-2.0
// Capabilities of the terminal of standard output or error. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "launcher/options/options.h"
#include "launcher/report/label.h"

namespace ivy {

// The variables that decide about colour; a variable that is unset is empty.
struct ColourVariables {
  std::string no_color;
  std::string clicolor_force;
  std::string clicolor;
  std::string term;
};
ColourVariables colour_variables();

// Decides whether to use colour: by the flag, then NO_COLOR, CLICOLOR_FORCE and CLICOLOR, then
// whether it is a terminal that is not dumb. Pure.
Colour decide_colour(ColorChoice choice, bool is_terminal, const ColourVariables& variables);

// True for a terminal that understands escape sequences.
bool is_capable_terminal(int fd);
// Returns the width in columns; 80 if the terminal does not report it.
int terminal_columns(int fd);
// True if the caller's locale is UTF-8, so that an ellipsis is one character.
bool locale_is_utf8();

// Returns the first `columns` columns of a text. SGR sequences take no column, a character of
// several bytes takes one, and control characters are left out. Pure.
std::string clip_to_columns(std::string_view text, int columns);

}  // namespace ivy
