// SPDX-License-Identifier: Apache-2.0
// Capabilities of the terminal of standard output or error. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "launcher/options/options.h"
#include "launcher/report/label.h"

namespace ivy {

// The variables that decide about colour; an unset one is empty.
struct ColourVariables {
  std::string no_color;
  std::string clicolor_force;
  std::string clicolor;
  std::string term;
};
ColourVariables colour_variables();

// Pure. Flag, then NO_COLOR, CLICOLOR_FORCE, CLICOLOR, then: is it a terminal that is not dumb?
Colour decide_colour(ColorChoice choice, bool is_terminal, const ColourVariables& variables);

// A terminal that understands escape sequences.
bool is_capable_terminal(int fd);
// Columns, 80 when the terminal does not say.
int terminal_columns(int fd);
// The locale of the caller is UTF-8, so an ellipsis is one character.
bool locale_is_utf8();

// Pure. The first `columns` columns of a text that may hold SGR sequences, which take no room; a
// character of several bytes counts as one column. Control characters are left out.
std::string clip_to_columns(std::string_view text, int columns);

}  // namespace ivy
